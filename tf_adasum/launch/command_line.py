"""The command line of ``tf-adasum-launch``. Standard library only."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from tf_adasum.launch.jobs import launch
from tf_adasum.launch.nodes import Nodes
from tf_adasum.launch.output import PROGRAM


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``tf-adasum-launch`` command line.

    Args:
        arguments: the command line after the program's name. Defaults to ``sys.argv[1:]``.

    Returns:
        The exit code of `launch`.

    Raises:
        SystemExit: with code 2 and a message on stderr when the arguments cannot be used.

    Example:
        >>> main(["-n", "4", "train.py"])  # starts processes  # doctest: +SKIP
        0
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    target = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not target:
        parser.error("nothing to run: give a script, or -m and a module")
    if not options.module and not os.path.isfile(target[0]):
        parser.error(f"script not found: {target[0]!r} (looked in {os.getcwd()})")
    command = [sys.executable, "-u", *(["-m"] if options.module else []), *target]
    try:
        if options.node_rank is None and options.nnodes > 1:
            raise ValueError(
                f"--node-rank: expected 0 to {options.nnodes - 1}, another one on each machine. "
                f"Received: --nnodes {options.nnodes} without it"
            )
        return launch(
            command,
            options.workers,
            options.devices_per_worker,
            options.timeout,
            max_restarts=options.max_restarts,
            nodes=Nodes(options.nnodes, options.node_rank or 0, options.coordinator),
            log_dir=options.log_dir,
            verbose=options.verbose,
            status=options.status,
        )
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:  # while the last output was written; the workers have ended
        return 128 + signal.SIGINT


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; everything from the script's name on belongs to the script."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s -n N [--nnodes M --node-rank I --coordinator HOST:PORT] "
        "[--devices-per-worker K] [--timeout SECONDS] [--max-restarts R] [--log-dir DIR] "
        "[--verbose] [--status] (SCRIPT | -m MODULE) [ARGS ...]",
        description="Start N workers of a training script on this machine and connect them, or on "
        "each of M machines.",
        epilog="example: %(prog)s -n 4 train.py --lr 0.1    starts 4 workers of "
        "`python train.py --lr 0.1`; whatever follows the script's name goes to the script. "
        "The exit code is 0, the code of the first worker that failed, 128+n for signal n, "
        "124 after --timeout, or 2 when nothing could be started. Workers of several machines "
        "share a secret if TF_ADASUM_SECRET or TF_ADASUM_SECRET_FILE gives the same one on all; "
        "without it whoever reaches the coordinator's port can take part.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n", "--workers", type=int, required=True, metavar="N", help="number of workers per node"
    )
    parser.add_argument(
        "--nnodes",
        type=int,
        default=1,
        metavar="M",
        help="number of machines, on each of which this is called with the same -n (default: 1)",
    )
    parser.add_argument(
        "--node-rank", type=int, metavar="I", help="which machine this is: 0 to M-1"
    )
    parser.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of node 0, the same on all, with a port that is free there: worker 0 waits "
        "there for the others",
    )
    parser.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="K",
        help="GPUs of each worker when GPUs are visible, else logical CPU devices of each worker "
        "(default: the visible GPUs divided evenly, else one CPU device)",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="stop all workers after that time"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="R",
        help="when a worker fails, start all of them again, at most R times (default: 0); for "
        "scripts that go on from a backup or checkpoint; the same on all nodes",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="write the output of worker i to DIR/worker-i.log, too; restarts and later calls are "
        "appended. The console shows all workers, with or without it",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="show all that TensorFlow says at its start (default: errors only, unless "
        "TF_CPP_MIN_LOG_LEVEL says something else)",
    )
    parser.add_argument(
        "--status",
        action="store_true",
        help="show the step, the speed and the state of each worker of this machine in a table "
        "below the output; if the output is no terminal, in a line every 30 seconds",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m")
    # One REMAINDER and no separate `script` positional: argparse would take a "--" out of the
    # script's own arguments.
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser
