"""Measures how long an exchange between all workers takes, as in training.

The workers pause before each exchange, and half of the workers pause for longer. So some workers
arrive first, sleep and have to be woken up, as in training. The time of the workers that arrive
last counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport.startup_exchange import StartupExchange

# The fastest of TIMES exchanges counts, for each bit of the ranks (see PAUSE).
TIMES = 3
# If the first exchange takes longer than SLOW_SECONDS, it is the only one. If each of the first two
# takes longer than MEDIUM_SECONDS, no more are made, because the time to wake up is negligible.
MEDIUM_SECONDS, SLOW_SECONDS = 0.05, 0.5
# PAUSE: the seconds to wait before an exchange. A mesh's thread polls for less time and then sleeps
# (mesh.cc). Half of the workers pause twice as long: a bit of the rank decides which half.
# MOST_BITS: the largest number of bits for which this is repeated.
PAUSE, MOST_BITS = 0.005, 4

Exchange = Callable[[], float]  # returns the seconds that it took


def measured(all_workers: StartupExchange, exchange: Exchange) -> tuple[str, float]:
    """Measure an exchange on all workers.

    The slower the network is, the fewer exchanges are made, so that the start does not take long.
    If there are several exchanges, the first one does not count.

    Returns:
        An error message, "" if no worker failed; the seconds on the slowest worker.
    """
    failure, seconds = once(all_workers, exchange)
    if failure or seconds > SLOW_SECONDS:
        return failure, seconds
    if seconds > MEDIUM_SECONDS:
        failure, seconds = once(all_workers, exchange)
        if failure or seconds > MEDIUM_SECONDS:
            return failure, seconds
    slowest: list[float] = []
    failure = failure_of(lambda: slowest.append(_after_pauses(all_workers.cluster, exchange)))
    return _of_all(all_workers, failure, slowest)


def once(all_workers: StartupExchange, exchange: Exchange) -> tuple[str, float]:
    """Return what `measured` returns, but for a single exchange."""
    took: list[float] = []
    failure = failure_of(lambda: took.append(exchange()))
    return _of_all(all_workers, failure, took)


def _of_all(all_workers: StartupExchange, failure: str, took: list[float]) -> tuple[str, float]:
    failure, of_all = all_workers.gather(failure, int(1e9 * max(took, default=0)))
    return failure, of_all.max() / 1e9


def _after_pauses(cluster: Cluster, exchange: Exchange) -> float:
    """Return the seconds of an exchange for which half of the workers has to be woken up.

    Each bit of the ranks divides the workers into two halves. Of several exchanges with the same
    halves, the fastest counts. Of the results of all bits, the slowest counts.
    """
    bits = min(MOST_BITS, (len(cluster.addresses) - 1).bit_length())
    least = []
    for bit in range(bits):
        seconds = []
        for turn in range(2 * TIMES):
            is_late = (cluster.rank >> bit ^ turn) & 1
            time.sleep(PAUSE * (1 + is_late))
            took = exchange()
            if is_late:
                seconds.append(took)
        least.append(min(seconds))
    return max(least)


def failure_of(act: Callable[[], object]) -> str:
    """Return why a function has failed; "" if it has not failed."""
    try:
        act()
    except RuntimeError as error:
        return str(error)
    return ""
