"""Addresses of tasks, with hosts of every kind."""

import contextlib
import errno
import os
import socket

import pytest
from support.meetings import needs_ipv6

from tf_adasum.cluster import addresses


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("a:1", "a", 1),
        ("host.domain:65535", "host.domain", 65535),
        ("10.0.0.1:80", "10.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_host_and_port(address, host, port):
    assert addresses.split(address) == (host, port)


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:x", "a:-1", "a:1.5"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match=f"'host:port'. Received: '{address}'$"):
        addresses.split(address)


@pytest.mark.parametrize("address", ["a:0", "a:65536", "a:123456", "[::1]:70000"])
def test_a_port_that_is_none(address):
    with pytest.raises(ValueError) as raised:
        addresses.split(address)
    assert str(raised.value) == f"a port must be from 1 to 65535. Received: {address!r}"


@pytest.mark.parametrize("address", ["http://a:12345", "tcp://[::1]:80", "grpc://a"])
def test_an_address_with_a_scheme(address):
    scheme = address.partition("//")[0]
    with pytest.raises(ValueError, match=f"leave out '{scheme}//'. Received: "):
        addresses.split(address)


@pytest.mark.parametrize("address", ["::1:80", "fe80::1:80", "a:b:1"])
def test_an_ipv6_host_without_brackets(address):
    with pytest.raises(ValueError, match=rf"IPv6 .*'\[host\]:port'. Received: '{address}'$"):
        addresses.split(address)


@pytest.mark.parametrize(
    "address", ["[::1]", "[::1]80", "[]:1", "[::1:80", "::1]:80", "[[::1]]:80"]
)
def test_brackets_that_do_not_fit(address):
    with pytest.raises(ValueError, match="Received"):
        addresses.split(address)


def can_connect(listener, host):
    port = listener.getsockname()[1]
    try:
        socket.create_connection((host, port), timeout=10).close()
    except OSError:
        return False
    listener.accept()[0].close()
    return True


@contextlib.contextmanager
def listening(host):
    with addresses.bound(host, 0, reuse=True) as listener:
        listener.listen()
        yield listener


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2"])
def test_a_task_on_this_machine_alone_listens_there_alone(host):
    with listening(host) as listener:
        assert listener.getsockname()[0] == ("127.0.0.1" if host == "localhost" else host)
        assert can_connect(listener, host)


@needs_ipv6
def test_a_task_on_this_machine_alone_listens_there_alone_by_ipv6():
    with listening("::1") as listener:
        assert listener.getsockname()[0] == "::1"
        assert can_connect(listener, "::1") and not can_connect(listener, "127.0.0.1")


@needs_ipv6
@pytest.mark.parametrize("host", ["", "10.0.0.1", "node", "2001:db8::1"])
def test_any_other_task_is_reached_by_both_families(host):
    with listening(host) as listener:
        assert can_connect(listener, "::1") and can_connect(listener, "127.0.0.1")


def families_of_localhost(monkeypatch, *families):
    found = [(family, socket.SOCK_STREAM, 0, "", ("", 0)) for family in families]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: found)


@needs_ipv6
def test_localhost_is_where_the_system_says(monkeypatch):
    for families, interface in [
        ([socket.AF_INET6], "::1"),
        ([socket.AF_INET6, socket.AF_INET], "127.0.0.1"),
        ([], "127.0.0.1"),
    ]:
        families_of_localhost(monkeypatch, *families)
        with addresses.bound("localhost", 0, reuse=True) as bound:
            assert bound.getsockname()[0] == interface


class WithoutFamily(socket.socket):
    """Sockets of a system that lacks a family: it has none of them, or no address of it."""

    lacks, error, when = socket.AF_INET6, errno.EAFNOSUPPORT, "made"

    def __init__(self, family=-1, *arguments, **options):
        if self.when == "made" and family == self.lacks:
            raise OSError(self.error, os.strerror(self.error))
        super().__init__(family, *arguments, **options)

    def bind(self, address):
        if self.when == "bound" and self.family == self.lacks:
            raise OSError(self.error, os.strerror(self.error))
        super().bind(address)


@pytest.mark.parametrize(
    ("when", "error"), [("made", errno.EAFNOSUPPORT), ("bound", errno.EADDRNOTAVAIL)]
)
@pytest.mark.parametrize("says_dual_stack", [True, False])
def test_a_system_without_ipv6(monkeypatch, when, error, says_dual_stack):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: says_dual_stack)
    monkeypatch.setattr(WithoutFamily, "when", when)
    monkeypatch.setattr(WithoutFamily, "error", error)
    monkeypatch.setattr(socket, "socket", WithoutFamily)
    for host in ("", "node", "localhost"):
        with listening(host) as listener:
            assert listener.family == socket.AF_INET and can_connect(listener, "127.0.0.1")
    with pytest.raises(OSError) as raised:
        addresses.bound("::1", 0, reuse=True)
    assert raised.value.errno == error


@needs_ipv6
def test_localhost_of_a_system_without_ipv4(monkeypatch):
    monkeypatch.setattr(WithoutFamily, "lacks", socket.AF_INET)
    monkeypatch.setattr(socket, "socket", WithoutFamily)
    with addresses.bound("localhost", 0, reuse=True) as bound:
        assert bound.getsockname()[0] == "::1"


def test_a_port_in_use_is_an_error_whatever_the_family():
    for host in ("127.0.0.1", "node"):
        with listening(host) as listener, pytest.raises(OSError) as raised:
            addresses.bound(host, listener.getsockname()[1], reuse=True)
        assert raised.value.errno == errno.EADDRINUSE
