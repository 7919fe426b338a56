"""Addresses of tasks, with hosts of every kind."""

import contextlib
import errno
import os
import socket

import pytest
from support.rendezvous_tasks import SOON, needs_ipv6

from tf_adasum.cluster import addresses, own_address

WRONG = {
    "an address must look like 'host:port', or '[host]:port' if the host is an IPv6 address.": [
        *("", "a", ":1", "a:", "a:x", "a:-1", "a:1.5"),
        *("[::1]", "[::1]80", "[]:1", "[::1:80", "::1]:80", "[[::1]]:80"),
        *("http://a:12345", "tcp://[::1]:80", "::1:80", "fe80::1:80", "a:b:1"),
    ],
    "a port must be from 1 to 65535.": ["a:0", "a:65536", "[::1]:70000"],
}


@pytest.mark.parametrize(
    ("address", "message"), [(each, why) for why, of_why in WRONG.items() for each in of_why]
)
def test_what_is_no_address_is_named(address, message):
    with pytest.raises(ValueError) as raised:
        addresses.split(address)
    assert f"{message} Received: {address!r}" in str(raised.value)


@contextlib.contextmanager
def listening(host):
    with addresses.bound(host, 0, reuse=True) as listener:
        listener.listen()
        yield listener


def hosts_that_reach(listener):
    """Return the loopback addresses by which one can connect."""
    found = set()
    for host in ("127.0.0.1", "127.0.0.2", "::1"):
        with contextlib.suppress(OSError):
            socket.create_connection((host, listener.getsockname()[1]), SOON).close()
            found.add(host)
    return found


@pytest.mark.parametrize(
    ("host", "interface"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        pytest.param("::1", "::1", marks=needs_ipv6),
    ],
)
def test_a_task_on_this_machine_alone_listens_there_alone(host, interface):
    with listening(host) as listener:
        assert hosts_that_reach(listener) == {interface}


@needs_ipv6
@pytest.mark.parametrize("host", ["", "10.0.0.1", "node", "2001:db8::1"])
def test_any_other_task_is_reached_by_both_families(host):
    with listening(host) as listener:
        assert hosts_that_reach(listener) == {"127.0.0.1", "127.0.0.2", "::1"}


@needs_ipv6
@pytest.mark.parametrize(
    ("families", "interface"),
    [
        ([socket.AF_INET6], "::1"),
        ([socket.AF_INET6, socket.AF_INET], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_localhost_is_where_the_system_resolves_it(monkeypatch, families, interface):
    found = [(family, socket.SOCK_STREAM, 0, "", ("", 0)) for family in families]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: found)
    with addresses.bound("localhost", 0, reuse=True) as bound:
        assert bound.getsockname()[0] == interface


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
@pytest.mark.parametrize("has_both", [True, False])
def test_a_system_without_ipv6(monkeypatch, number, has_both):
    class Socket(socket.socket):
        def bind(self, address):
            if self.family == socket.AF_INET6:
                raise OSError(number, os.strerror(number))
            super().bind(address)

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: has_both)
    monkeypatch.setattr(socket, "socket", Socket)
    for host in ("", "node", "localhost"):
        with listening(host) as listener:
            assert listener.family == socket.AF_INET
            assert "127.0.0.1" in hosts_that_reach(listener)
    with pytest.raises(OSError) as raised:
        addresses.bound("::1", 0, reuse=True)
    assert raised.value.errno == number


def test_a_name_that_does_not_resolve_yet_is_not_this_machine():
    """The name of a new pod, for example."""
    assert own_address.is_here("localhost") and not own_address.is_here("late.invalid")
