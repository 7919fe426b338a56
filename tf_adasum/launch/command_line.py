"""The command line of ``tf-adasum-launch``. Uses only the standard library."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence

from tf_adasum import environment_variables
from tf_adasum.errors import see
from tf_adasum.launch import commands, elastic
from tf_adasum.launch.cpu_shares import BIND_TO
from tf_adasum.launch.environments import automatic_workers
from tf_adasum.launch.failures import EXIT_USAGE
from tf_adasum.launch.jobs import launch
from tf_adasum.launch.nodes import Nodes
from tf_adasum.launch.output import PROGRAM
from tf_adasum.launch.worker_process import open_standard_streams

_BACKEND = "KERAS_BACKEND"
_MOST_NODES = 2000  # a message with a round of more hosts would be too long
WORKERS = {"-n", "-np", "--workers"}  # names of the option

_EXAMPLES = (
    (f"{PROGRAM} train.py", "one worker for each GPU of this machine"),
    (f"{PROGRAM} -n 4 train.py --lr 0.1", "four workers of `python train.py --lr 0.1`"),
    (f"{PROGRAM} -n 4 --max-restarts 3 -m package.train", "restart at most 3 times after failures"),
)
_END = f"""\
exit status: 0; or the status of the first worker that failed; 128+n after signal n; 124 after
--timeout; 75 if training was stopped and made a backup; 2 after wrong usage; 1 if too few hosts
are left.

{commands.examples(_EXAMPLES)}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``tf-adasum-launch`` command line.

    Args:
        arguments: the command line after the program's name. Defaults to ``sys.argv[1:]``.

    Returns:
        The exit status of `launch`.

    Raises:
        SystemExit: with code 2 and a message on stderr when the arguments cannot be used.

    Example:
        >>> main(["-n", "4", "train.py"])  # starts processes  # doctest: +SKIP
        0
    """
    open_standard_streams()
    parser = build_parser()
    options = parser.parse_args(arguments)
    target = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not target:
        parser.error("nothing to run: give a script, or -m and a module")
    if not options.module and not os.path.isfile(target[0]):
        is_python = os.path.basename(target[0]).startswith("python")
        hint = f". Leave out {target[0]!r}: the launcher runs Python" if is_python else ""
        parser.error(f"script not found: {target[0]!r} (looked in {os.getcwd()}){hint}")
    if (backend := os.environ.get(_BACKEND, "")) not in ("", "tensorflow"):
        parser.error(
            f"tf_adasum needs Keras on TensorFlow. Received: {_BACKEND}={backend}. Unset the "
            f"variable {see('TFA-104')}"
        )
    for sentence in environment_variables.misspelt():
        print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    command = [sys.executable, "-u", *(["-m"] if options.module else []), *target]
    if options.workers is None and (given := sorted(WORKERS.intersection(target[1:]))):
        print(
            f"{PROGRAM}: {given[0]} stands after {target[0]}, so it is an argument of the script. "
            f"To set the number of workers, write it before the script: {PROGRAM} {given[0]} ...",
            file=sys.stderr,
        )
    try:
        return _launch(command, options)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:  # while the last output was written; the workers have ended
        return 128 + signal.SIGINT


def _launch(command: Sequence[str], options: argparse.Namespace) -> int:
    names = ("timeout", "max_restarts", "log_dir", "verbose", "bind_to")
    settings = {name: getattr(options, name) for name in names}
    workers, devices, nnodes = options.workers, options.devices_per_worker, options.nnodes
    if workers is None:
        workers = automatic_workers(os.environ, devices)
    if isinstance(nnodes, tuple):
        if options.node_rank is not None:
            raise ValueError(
                "--node-rank: leave it out, because ranks change when hosts join or are lost. "
                f"Received: --nnodes MIN:MAX --node-rank {options.node_rank}"
            )
        coordinator = options.coordinator
        return elastic.launch_elastic(command, workers, devices, nnodes, coordinator, **settings)
    rank = 0 if nnodes == 1 and options.node_rank is None else options.node_rank
    nodes = Nodes(nnodes, rank, options.coordinator)
    return launch(command, workers, devices, nodes=nodes, **settings)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser. All arguments after the script's name belong to the script."""
    parser = commands.Parser(
        prog=PROGRAM,
        usage="%(prog)s [-n N] [OPTION ...] (SCRIPT | -m MODULE) [ARG ...]",
        description="Start the workers of a training script, and connect them. Arguments after "
        "the script's name are\npassed to the script.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        *sorted(WORKERS, key=len),
        type=number_or_auto,
        metavar="N",
        help="workers on each machine; auto: one for each visible GPU, or for each K GPUs with "
        "--devices-per-worker K; one without GPUs (default: auto)",
    )
    parser.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="K",
        help="GPUs of each worker (default: an equal share); without GPUs: logical CPU devices",
    )
    parser.add_argument(
        "--bind-to",
        choices=BIND_TO,
        default=BIND_TO[0],
        help="cores: without GPUs, each worker has its own CPU cores; none: all run on all cores",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module, as python -m")
    machines = parser.add_argument_group(
        "several machines",
        "Set the same TF_ADASUM_SECRET on all machines: otherwise any process that reaches the\n"
        "coordinator's port can join.",
    )
    machines.add_argument(
        "--nnodes",
        default=1,
        type=_machines,
        metavar="M|MIN:MAX",
        help="number of machines (default: 1), on each of which you start this command. With "
        "MIN:MAX, training continues if machines are added, or lost except the coordinator",
    )
    machines.add_argument(
        "--node-rank", type=int, metavar="I", help="with --nnodes M: this machine's rank, 0 to M-1"
    )
    machines.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="with --nnodes: the machine of worker 0, with a free port that all can reach",
    )
    group = parser.add_argument_group("failures and output")
    group.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="stop all workers after this time"
    )
    group.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="R",
        help="if a worker fails, start all of them again, at most R times (default: 0)",
    )
    group.add_argument(
        "--log-dir",
        metavar="DIR",
        help="also write the output of worker i to DIR/worker-i.log; later starts are appended",
    )
    group.add_argument(
        "--verbose",
        action="store_true",
        help="show all messages of TensorFlow (default: TF_CPP_MIN_LOG_LEVEL, or errors only)",
    )
    commands.add_common_options(parser)
    # One argument takes the script and all that follows. With a separate argument `script`,
    # argparse would remove a "--" from the script's own arguments.
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def number_or_auto(text: str) -> int | None:
    """Return the number of workers; None for "auto". (argparse's errors show this name.)"""
    return None if text == "auto" else int(text)


def _machines(text: str) -> int | tuple[int, int]:
    """Return M, or MIN and MAX.

    Example:
        >>> _machines("2"), _machines("1:4")
        (2, (1, 4))
    """
    found = re.fullmatch(r"(\d{1,4})(:(\d{1,4}))?", text)
    least, most = (int(found[1]), int(found[3] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= _MOST_NODES:
        raise argparse.ArgumentTypeError(
            f"expected M, or MIN:MAX with 1 <= MIN <= MAX <= {_MOST_NODES}. Received: {text}"
        )
    return (least, most) if ":" in text else least
