"""Workers that join, as threads of one process at a port of this machine."""

import contextlib
import sys
import threading
import time
import traceback

from support.meetings import SOON
from support.worker_group import free_ports
from tf_adasum.cluster import joining
from tf_adasum.cluster.invitation import Invitation


def invitations(count, host="127.0.0.1"):
    """What each worker is told."""
    coordinator = f"{host}:{free_ports(1)[0]}"
    return [Invitation(coordinator, rank, count, "a test") for rank in range(count)]


def run(invited, *, timeout=SOON, delays=None, environments=None, limit=2 * SOON):
    """Lets workers join, a thread each; returns the cluster or the error of each, and seconds."""
    outcomes, seconds = [None] * len(invited), [None] * len(invited)
    stacks = [contextlib.ExitStack() for _ in invited]
    together = threading.Barrier(len(invited))

    def take_part(place, invitation):
        together.wait()
        time.sleep(delays[place] if delays else 0)
        start = time.monotonic()
        try:
            environment = environments[place] if environments else {}
            outcomes[place] = joining.enter(invitation, timeout, environment, stacks[place])
        except Exception as error:
            outcomes[place] = error
        seconds[place] = time.monotonic() - start

    threads = [
        threading.Thread(target=take_part, args=task, daemon=True) for task in enumerate(invited)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    for stack in stacks:
        stack.close()
    frames = sys._current_frames()
    traces = ["".join(traceback.format_stack(frames[t.ident])) for t in threads if t.is_alive()]
    assert None not in seconds, f"still waiting after {limit} s:\n" + "\n".join(traces)
    return outcomes, seconds
