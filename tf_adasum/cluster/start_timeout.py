"""A guard that ends this worker if TensorFlow's start-up never returns.

If another worker ends between the rendezvous and TensorFlow's registration, worker 0 waits without
end (observed with TensorFlow 2.21). While worker 0 waits, it holds Python's global lock, so no
thread of worker 0 can end the wait. So this file is also a program, which `bounded` starts in a
separate process, by the path of the file. Standard library only, and nothing of tf_adasum.
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
import time
import typing
from collections.abc import Iterator

if typing.TYPE_CHECKING:
    from tf_adasum.cluster.tasks import Cluster

LAUNCHER = "TF_ADASUM_LAUNCHER"  # as in errors.py, which the program cannot import
_ERROR_FILE = "TF_ADASUM_ERROR_FILE"  # as `error_file.NAME`
_SECONDS_TO_CONNECT, _SECONDS_TO_CONNECT_TO_ALL = 2.0, 5.0


@contextlib.contextmanager
def bounded(cluster: Cluster, seconds: float) -> Iterator[None]:
    """Return a context manager that ends this process with a message if the block takes too long.

    Args:
        cluster: the `Cluster`.
        seconds: the longest time that the block may take.
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
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    # When the block ends, or this process ends, the pipe is closed. Then the separate program ends.
    # At the end of the block, this process waits until the separate program has ended.
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:
        with contextlib.suppress(BrokenPipeError):  # the program has ended, so there is no limit
            assert program.stdin is not None
            line = json.dumps(task) + "\n"  # may be too long for an argument
            program.stdin.write(line.encode())
            program.stdin.flush()
        yield


def main() -> None:
    """Wait until the worker has started or ended, and kill the worker if this takes too long."""
    raw = getattr(sys.stdin.buffer, "raw")  # noqa: B009 - not in the type of stdin
    line = raw.readline()
    if not line:  # the worker has already ended
        return
    task = json.loads(line)
    if _is_over(task["seconds"]):
        return
    until = time.monotonic() + _SECONDS_TO_CONNECT_TO_ALL
    gone = [
        name
        for name, address in task["others"]
        if time.monotonic() < until and not _answers(address)
    ]
    if _is_over(0.0):  # the worker has just started
        return
    reached = f", and {', '.join(gone)} cannot be reached any more" if gone else ""
    then = "Start all workers again."
    if os.environ.get(LAUNCHER):
        then = "tf-adasum-launch ends the others; with --max-restarts, it restarts all workers."
    text = (
        f"tf_adasum: {task['name']} has waited {task['seconds']:.0f} s in TensorFlow's start-up"
        f"{reached}. This worker ends, because TensorFlow would wait forever. {then} "
        "(tf-adasum-doctor --explain TFA-208)"
    )
    print(text, file=sys.stderr, flush=True)
    if path := os.environ.get(_ERROR_FILE):
        report = {"error": text, "is_because_of_another": True, "time": time.time()}
        with contextlib.suppress(OSError), open(path, "w") as file:
            json.dump(report, file)
    os.kill(task["worker"], signal.SIGKILL)


def _is_over(seconds: float) -> bool:
    """Return whether the other end of the pipe is closed within some seconds."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _answers(address: list[typing.Any]) -> bool:
    host, port = address
    try:
        with socket.create_connection((host, port), _SECONDS_TO_CONNECT):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
