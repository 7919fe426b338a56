"""Whether workers can be connected to; links that are cut are in tests/networks."""

import socket

import pytest
from support.rendezvous_tasks import cluster_of, silent_listener

from tf_adasum.health import reachability


@pytest.fixture
def full(monkeypatch):
    monkeypatch.setattr(reachability, "SECONDS_TO_CONNECT", 1.0)
    with silent_listener() as place:
        yield place


def closed():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()


def test_why_there_is_no_answer(full):
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = [server.getsockname(), closed(), full, ("no such host.", 1)]
        words = reachability.connect_errors(places)
    assert words[:3] == ["", "Connection refused", "no answer within 1 s"]
    assert words[3]


def test_the_port_of_ucx_is_tried_too(full):
    """If it is closed the other machine refuses; behind a firewall there is no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        addresses = [f"127.0.0.1:{end[1]}" for end in (server.getsockname(), closed())]
        tried = reachability.Reachability(cluster_of(*addresses, rank=1))
        assert tried.try_all() == ""
        tried.ucx_ports = {0: closed()}
        assert tried.try_all() == ""
        tried.ucx_ports = {0: full}
        assert tried.try_all() == (
            f"worker 0 ({addresses[0]}): no answer within 1 s at 127.0.0.1:{full[1]}, the port of "
            "UCX"
        )
