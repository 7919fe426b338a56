"""A guard that ends this worker if TensorFlow's start-up never returns.

Worker 0 waits in there without end for a worker that ends between the rendezvous and TensorFlow's
registration (seen with TensorFlow 2.21), and holds Python's global lock meanwhile: none of its own
threads could end it. So this file is also a program, which `bounded` starts as a process of its
own, by the file's path and without any packages: standard library only, and nothing of tf_adasum.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import typing
from collections.abc import Iterator

if typing.TYPE_CHECKING:
    from tf_adasum.cluster.tasks import Cluster

# Set by tf-adasum-launch for its workers.
LAUNCHER = "TF_ADASUM_LAUNCHER"

_SECONDS_TO_CONNECT = 2.0


@contextlib.contextmanager
def bounded(cluster: Cluster, seconds: float) -> Iterator[None]:
    """End this process with a message if what is inside takes longer.

    Args:
        cluster: the `Cluster`.
        seconds: after which it is too long.
    """
    if not sys.executable:  # Python inside of another program
        yield
        return
    others = [rank for rank in range(len(cluster.addresses)) if rank != cluster.rank]
    task = {
        "worker": os.getpid(),
        "name": cluster.names[cluster.rank],
        "seconds": seconds,
        "others": [(cluster.named([rank]), cluster.host_and_port(rank)) for rank in others],
    }
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__), json.dumps(task)]
    # The end of the block closes the pipe, which tells the program that all is well, as the end of
    # this process would; and waits for it.
    with subprocess.Popen(command, stdin=subprocess.PIPE):
        yield


def main(task: dict) -> None:
    """Wait until the worker has started or ended, and kill it if that takes too long."""
    if select.select([sys.stdin], [], [], task["seconds"])[0]:
        return
    gone = [name for name, address in task["others"] if not _answers(address)]
    reached = f", and {', '.join(gone)} cannot be reached any more" if gone else ""
    then = "Start all workers again."
    if os.environ.get(LAUNCHER):
        then = "tf-adasum-launch ends the others; with --max-restarts it starts all of them again."
    print(
        f"tf_adasum: {task['name']} has waited {task['seconds']:.0f} s in TensorFlow's start-up"
        f"{reached}. It ends here, because nothing else ends it. {then} "
        "(tf-adasum-doctor --explain TFA-208)",
        file=sys.stderr,
        flush=True,
    )
    os.kill(task["worker"], signal.SIGKILL)


def _answers(address):
    host, port = address
    try:
        with socket.create_connection((host, port), _SECONDS_TO_CONNECT):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
