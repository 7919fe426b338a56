"""Whether workers can be connected to; links that are cut are in tests/networks."""

import socket

import pytest

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import reachability


@pytest.fixture
def full():
    """A place that answers no more calls: its queue is full, as behind a link that is cut."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):
            yield listener.getsockname()


def closed():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()


def test_why_there_is_no_answer(full, monkeypatch):
    monkeypatch.setattr(reachability, "SECONDS_TO_CONNECT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = [server.getsockname(), closed(), full, ("no such host.", 1)]
        words = reachability.answers(places)
    assert words[:3] == ["", "Connection refused", "no answer within 1 s"]
    assert words[3]


def test_workers_that_cannot_be_reached():
    ports = [closed()[1] for _ in range(6)]
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    cluster = Cluster(addresses, tuple(f"worker {rank}" for rank in range(6)), 1)
    told = reachability.Reachability(cluster).try_all()
    assert told.startswith(f"worker 0 ({addresses[0]}): Connection refused, worker 2 (")
    assert told.endswith(f"worker 3 ({addresses[3]}): Connection refused, and 2 more")
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = (f"127.0.0.1:{server.getsockname()[1]}", addresses[1])
        assert reachability.Reachability(Cluster(there, cluster.names[:2], 1)).try_all() == ""


def test_the_port_of_ucx_is_tried_too(full, monkeypatch):
    """It is closed, which the other machine says; behind a firewall there is no answer."""
    monkeypatch.setattr(reachability, "SECONDS_TO_CONNECT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        addresses = (f"127.0.0.1:{server.getsockname()[1]}", "127.0.0.1:1")
        tried = reachability.Reachability(Cluster(addresses, ("worker 0", "worker 1"), 1))
        tried.also_try({0: closed()})
        assert tried.try_all() == ""
        tried.also_try({0: full})
        assert tried.try_all() == (
            f"worker 0 ({addresses[0]}): no answer within 1 s at 127.0.0.1:{full[1]}, the port of "
            "UCX"
        )
