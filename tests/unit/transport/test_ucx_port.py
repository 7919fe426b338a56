"""Who may connect to the port of UCX, with sockets of this process in its place."""

import socket
import struct

import pytest
from support.rendezvous_tasks import needs_ipv6

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import reachability
from tf_adasum.transport import ucx_port
from tf_adasum.transport.ucx_port import UcxPort

SECONDS = 0.3  # after which a call is taken for one that nobody answers


def call(end, source):
    """Return a connection from an address, or the name of the error."""
    caller = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET)
    caller.settimeout(SECONDS)
    caller.bind((source, 0))
    try:
        caller.connect(end)
    except OSError as error:
        caller.close()
        return type(error).__name__
    return caller


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ("127.0.0.1", ["127.0.0.2", "10.1.2.3"]),
        pytest.param("::1", ["::2", "fd00::1:2:3"], marks=needs_ipv6),
    ],
)
def test_only_workers_connect_and_nobody_after_the_start(own, others):
    before = ucx_port.listening()
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    with socket.create_server((own, 0), family=family) as ucx, socket.create_server(("", 0)):
        end = ucx.getsockname()[:2]
        port = UcxPort(before, b"an address" + struct.pack("!H", end[1]) + b" of UCX")
        assert port.endpoints == [end]
        assert call(end, own) == "TimeoutError"
        port.admit(others)
        assert call(end, own) == "TimeoutError"
        port.admit([*others, own])
        with call(end, own) as connection:
            assert ucx_port.connected({1: [end], 2: [(own, 1)]}) == {1: end}
            accepted, _ = ucx.accept()
            port.close()
            assert call(end, own) == "ConnectionRefusedError"
            with accepted:
                accepted.sendall(b"still connected")
                assert connection.recv(100) == b"still connected"
            port.close()  # again: nothing happens
        if own == "127.0.0.1":
            port.admit([])


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def port_of(listener):
    """The port of a UCX that listens there."""
    end = listener.getsockname()
    others = {each for each in ucx_port.listening() if each.endpoint != end}
    return UcxPort(others, struct.pack("!H", end[1]))


def test_another_address_of_this_machine_is_not_admitted(listener):
    port_of(listener).admit(["127.0.0.1"])
    assert call(listener.getsockname(), "127.0.0.2") == "TimeoutError"
    call(listener.getsockname(), "127.0.0.1").close()


def test_a_descriptor_that_ucx_has_closed_is_left_alone(listener):
    port, descriptor = port_of(listener), listener.fileno()
    listener.close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert other.fileno() == descriptor
        port.close()
        call(other.getsockname(), "127.0.0.1").close()


def test_addresses_from_which_a_worker_connects():
    packed = ucx_port.sources({0: [("127.0.0.1", 1)], 1: [("127.0.0.3", 2)]})
    assert len(packed) == ucx_port.BYTES_OF_SOURCES
    assert ucx_port.hosts_in(packed) == ["127.0.0.1"]
    assert ucx_port.hosts_in(ucx_port._packed("fd00::1")) == ["fd00::1"]


@pytest.mark.parametrize("count", [0, 1, 600, 3000])
def test_a_filter_fits_into_the_kernel(listener, count):
    hosts = [f"10.0.{number // 250}.{number % 250}" for number in range(count)]
    assert len(ucx_port._program(hosts, 4)) <= ucx_port._MOST_INSTRUCTIONS
    port_of(listener).admit(hosts)
    # So many hosts that there is no filter: better than none of them.
    is_open = not isinstance(call(listener.getsockname(), "127.0.0.1"), str)
    assert is_open == (count == 3000)


def test_who_cannot_be_reached_is_named(monkeypatch):
    cluster = Cluster(("a:1", "b:2", "c:3"), ("worker 0", "worker 1", "worker 2"), 0)
    silent, words = "no answer within 3 s", {("10.0.0.2", 7): "", ("10.0.0.3", 8): ""}
    monkeypatch.setattr(reachability, "connect_errors", lambda ends: [words[end] for end in ends])
    ends = {1: [("10.0.0.2", 7)], 2: [("10.0.0.3", 8)]}
    assert ucx_port.unreachable(cluster, ends) == ""
    words[("10.0.0.3", 8)] = silent
    assert ucx_port.unreachable(cluster, ends) == (
        f"UCX cannot reach worker 2 (c:3) at 10.0.0.3:8: {silent}"
    )
    words[("10.0.0.2", 7)] = silent
    assert ucx_port.unreachable(cluster, ends).endswith(f"10.0.0.2:7: {silent} (and 1 more)")
    assert ucx_port.unreachable(cluster, {1: [], 2: []}) == "", "of a UCX without TCP"
