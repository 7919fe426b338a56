"""The port of UCX, with sockets of this process in its place."""

import socket
import struct

import pytest
from support.pace import PACE
from support.rendezvous_tasks import cluster_of, needs_ipv6

from tf_adasum.health import reachability
from tf_adasum.transport import ucx_port

SECONDS = 0.3 * PACE  # after which a call is taken for one that nobody answers


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


@pytest.mark.parametrize("own", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_nobody_connects_after_the_start(own):
    before = ucx_port.listening()
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    others = socket.create_server(("", 0))  # of another thread
    with socket.create_server((own, 0), family=family) as ucx, others:
        end = ucx.getsockname()[:2]
        ports = struct.pack("!HH", end[1], others.getsockname()[1])
        port = ucx_port.of_mesh(before, b"an address" + ports + b" of UCX")
        assert [each.endpoint for each in port] == [end]
        with call(end, own) as connection:
            assert ucx_port.connected({1: [end], 2: [(own, 1)]}) == {1: end}
            accepted, _ = ucx.accept()
            ucx_port.close(port)
            assert call(end, own) == "ConnectionRefusedError"
            with accepted:
                accepted.sendall(b"still connected")
                assert connection.recv(100) == b"still connected"
            ucx_port.close(port)  # again: nothing happens


def test_who_cannot_be_reached_is_named(monkeypatch):
    cluster = cluster_of("a:1", "b:2", "c:3")
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


def test_a_descriptor_that_ucx_has_closed_is_left_alone():
    before = ucx_port.listening()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        port = ucx_port.of_mesh(before, struct.pack("!H", listener.getsockname()[1]))
    assert [each.descriptor for each in port] == [descriptor]
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert other.fileno() == descriptor
        ucx_port.close(port)
        call(other.getsockname(), "127.0.0.1").close()
