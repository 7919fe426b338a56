"""Ends a worker that TensorFlow's start-up does not return to.

Worker 0 waits in there without end for a worker that ends between the rendezvous and TensorFlow's
registration (seen with TensorFlow 2.21), and holds Python's global lock meanwhile: no thread of its
own could say so. This file is run as a process of its own, by `bounded`; standard library only.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys


@contextlib.contextmanager
def bounded(cluster, seconds):
    """Ends this process with a message if what is inside takes longer.

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
        "others": [(cluster.names[rank], cluster.addresses[rank]) for rank in others],
    }
    command = [sys.executable, "-I", "-S", os.path.abspath(__file__), json.dumps(task)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        guard.stdin.close()  # tells it that all is well, as the end of this process would
        guard.wait()


def main(task):
    """Waits until the worker has started or ended, and not for too long."""
    if select.select([sys.stdin], [], [], task["seconds"])[0]:
        return
    gone = [f"{name} ({address})" for name, address in task["others"] if not _answers(address)]
    print(
        f"tf_adasum: {task['name']} has waited {task['seconds']:.0f} s in TensorFlow's start-up, "
        + (f"and {', '.join(gone)} cannot be reached any more. " if gone else "")
        + "It ends here, because nothing else ends it. Start all workers again.",
        file=sys.stderr,
        flush=True,
    )
    os.kill(task["worker"], signal.SIGKILL)


def _answers(address):
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 2.0):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
