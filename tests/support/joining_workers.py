"""Workers that join, as threads of one process at a port of this machine."""

import contextlib

import pytest

from support.rendezvous_tasks import SOON, run_in_threads
from support.worker_group import free_ports
from tf_adasum.cluster import rendezvous, start_round
from tf_adasum.cluster.rendezvous import Participant
from tf_adasum.cluster.tasks import Cluster, cluster_to_join


@pytest.fixture
def impatient(monkeypatch):
    """What takes seconds elsewhere, so that those who are there find each other, takes less."""
    monkeypatch.setattr(start_round, "_GRACE_SECONDS", 1.0)
    monkeypatch.setitem(rendezvous.SECONDS_TO_SEND_ERROR, "", (0.5, 4.0))
    monkeypatch.setitem(rendezvous.SECONDS_TO_SEND_ERROR, "late", (0.5, 1.0))
    monkeypatch.setattr(rendezvous, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(rendezvous, "ANSWER_SECONDS", 1.0)
    monkeypatch.setitem(rendezvous.SECONDS_TO_SEND_ERROR, "secret", (3.0, 0.0))


def configs_of(count, host="127.0.0.1"):
    """What each worker is told."""
    address = f"{host}:{free_ports(1)[0]}"
    return [cluster_to_join(address, rank, count, "a test") for rank in range(count)]


def run(configs, *, timeout=SOON, delays=None, environments=None, limit=2 * SOON, then=None):
    """Lets workers join, a thread each; returns the cluster or the error of each, and seconds.

    `then(participant)` replaces the cluster.
    """
    with contextlib.ExitStack() as all_are_in:

        def take_part(place):
            environment = environments[place] if environments else {}
            made = Participant(configs[place], environment)
            all_are_in.callback(made.close)
            made.join(timeout)
            return then(made) if then else made.cluster

        return run_in_threads(take_part, len(configs), delays=delays, limit=limit)


def assert_together(outcomes, count):
    """Check that all workers have the same list, each with its own rank and port."""
    assert all(isinstance(outcome, Cluster) for outcome in outcomes), outcomes
    (found,) = {outcome.addresses for outcome in outcomes}
    assert sorted(outcome.rank for outcome in outcomes) == list(range(count))
    assert len(set(found)) == len(found) == count
    return found
