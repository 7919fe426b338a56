"""Measures how long an exchange between all workers takes, as in training.

The workers pause before each exchange, half of them for longer: in training also, some workers
arrive first and sleep, and have to be woken up. The time of the workers that arrive last counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport.talk import Gather, Talk

# The fastest of this many exchanges counts; on a slow network, with an exchange of this many
# seconds, only one is made.
TIMES, SLOW_SECONDS = 3, 0.5
# The pause before an exchange: longer than the thread of a mesh polls (mesh.cc), and twice as long
# for half of the workers. A bit of its rank decides in which half a worker is; this is the maximal
# number of bits.
PAUSE, MOST_BITS = 0.005, 4

Exchange = Callable[[], float]  # returns the seconds that it took


def of_gather(talk: Talk, gather: Gather, words: int) -> float:
    """Return the seconds for gathering int64 ``[words]`` of each worker in TensorFlow."""

    def exchange():
        begun = time.perf_counter()
        gather(np.zeros(words, np.int64))
        return time.perf_counter() - begun

    _, seconds = measured(talk, exchange)
    return seconds


def measured(talk: Talk, exchange: Exchange) -> tuple[str, float]:
    """Return what has failed on any worker, and the seconds of an exchange on the slowest one.

    The first exchange counts only on a slow network.
    """
    failure, seconds = once(talk, exchange)
    if failure or seconds > SLOW_SECONDS:
        return failure, seconds
    slowest: list[float] = []
    failure = failure_of(lambda: slowest.append(_after_pauses(talk.cluster, exchange)))
    return _told(talk, failure, slowest)


def once(talk: Talk, exchange: Exchange) -> tuple[str, float]:
    """Return what has failed on any worker, and the seconds of one exchange on the slowest one."""
    took: list[float] = []
    failure = failure_of(lambda: took.append(exchange()))
    return _told(talk, failure, took)


def _told(talk, failure, took):
    failure, of_all = talk.tell(failure, int(1e9 * max(took, default=0)))
    return failure, of_all.max() / 1e9


def _after_pauses(cluster: Cluster, exchange: Exchange) -> float:
    """Return the seconds of an exchange for which half of the workers has to be woken up.

    Each bit of the ranks gives two halves: the slowest division counts, and of several exchanges
    the fastest.
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
    """Return why a function has failed, "" if it has not."""
    try:
        act()
    except RuntimeError as error:
        return str(error)
    return ""
