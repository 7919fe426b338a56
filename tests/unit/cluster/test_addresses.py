"""Addresses of tasks, with hosts of every kind."""

import pytest

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


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:x", "a:0", "a:65536", "a:-1", "a:1.5"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match=f"'host:port'. Received: '{address}'$"):
        addresses.split(address)


@pytest.mark.parametrize(
    ("host", "interface"),
    [("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.1"), ("10.0.0.1", ""), ("node", "")],
)
def test_a_task_on_this_machine_alone_listens_there_alone(host, interface):
    assert addresses.listening_host(host) == interface
