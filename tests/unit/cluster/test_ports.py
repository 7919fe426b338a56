"""Ports that workers get are held, and nobody else gets them.

`socket.create_server` listens as TensorFlow's server does: with SO_REUSEADDR.
"""

import errno
import socket

import pytest

from tf_adasum.cluster import ports


def refused():
    return pytest.raises(OSError, match=rf"\[Errno {errno.EADDRINUSE}\]")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_held_port_is_for_one_server(host):
    with ports.hold(0) as held:
        port = held.getsockname()[1]
        with refused(), socket.socket() as other:
            other.bind((host, port))
        with refused():
            ports.hold(port)
        with socket.create_server((host, port)), refused():
            socket.create_server((host, port))
        with socket.create_server((host, port)) as again:
            socket.create_connection(("127.0.0.1", port)).close()
            again.accept()[0].close()
    assert ports.can_be_held()


def test_a_port_that_another_holds_can_be_held_too():
    with ports.hold(0) as held:
        port = held.getsockname()[1]
        with ports.hold(port, shared=True), socket.create_server(("127.0.0.1", port)):
            pass
    with ports.hold(port, shared=True), refused(), socket.socket() as other:
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_in_use_cannot_be_held(shared):
    with socket.create_server(("127.0.0.1", 0)) as other, refused():
        ports.hold(other.getsockname()[1], shared=shared)


def bind(port):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_ports_are_distinct_held_and_free_afterwards():
    with ports.free_ports(50) as found, ports.free_ports(50) as others:
        assert len({*found, *others}) == 100
        for port in found:
            with pytest.raises(OSError):
                bind(port)
    for port in found:
        bind(port)


def test_what_cannot_be_held_is_free(monkeypatch):
    monkeypatch.setattr(ports, "can_be_held", lambda: False)
    with ports.free_ports(1) as (port,):
        bind(port)
