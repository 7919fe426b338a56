"""Workers in one process: each is a thread, and they exchange values in memory."""

import threading

import numpy as np

from support.pace import PACE
from support.rendezvous_tasks import run_in_threads
from tf_adasum.workers.workers import Workers

SECONDS = 20 * PACE  # after which a thread gives up that waits for another


def run_on_workers(count, part):
    """Call ``part(workers)`` on each of so many workers at once.

    Returns:
        For each worker what `part` returned, or the exception that it raised.
    """
    brought, barrier = [None] * count, threading.Barrier(count, timeout=SECONDS)

    def work(rank):
        def gather(own):
            brought[rank] = own.copy()
            barrier.wait()
            of_all = np.stack(brought)  # fails unless all bring equally many
            barrier.wait()  # before the next call brings something else
            return of_all

        return part(Workers(rank, count, gather, lambda own: gather(own).sum(axis=0)))

    outcomes, _ = run_in_threads(work, count, limit=2 * SECONDS)
    return outcomes


def results_on_workers(count, part):
    """Return the results of ``part(workers)`` on each worker; raise the first exception."""
    outcomes = run_on_workers(count, part)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes
