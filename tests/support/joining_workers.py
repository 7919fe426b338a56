"""Workers at a rendezvous, as threads of one process: they join, or know all addresses."""

import contextlib

import pytest

from support.rendezvous_tasks import SETTINGS, SOON, run_in_threads
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


def run(workers, *, timeout=SOON, delays=None, environments=None, then=None):
    """Lets workers take part, a thread each; returns what each returned or raised, and seconds.

    Those that do not know all addresses join, and return the cluster; the others meet, and return
    None. `then(participant)` replaces the meeting and the cluster.
    """
    with contextlib.ExitStack() as all_are_in:

        def take_part(place):
            made = Participant(workers[place], environments[place] if environments else {})
            if made.cluster.addresses and not then:
                with contextlib.closing(made):
                    made.meet(SETTINGS, {"of": made.cluster.rank}, timeout)
                assert made.payload == {"of": 0}
                return None
            all_are_in.callback(made.close)
            if not made.cluster.addresses:
                made.join(timeout)
            return then(made) if then else made.cluster

        return run_in_threads(take_part, len(workers), delays=delays)


def assert_together(outcomes, count):
    """Check that all workers have the same list, each with its own rank and port."""
    assert all(isinstance(outcome, Cluster) for outcome in outcomes), outcomes
    (found,) = {outcome.addresses for outcome in outcomes}
    assert sorted(outcome.rank for outcome in outcomes) == list(range(count))
    assert len(set(found)) == len(found) == count
    return found
