"""The interface of this worker's address: the loopback only where all workers are there."""

import socket

import pytest
from support.rendezvous_tasks import cluster_of

from tf_adasum.cluster import own_address
from tf_adasum.transport import network_interface


@pytest.fixture
def machine(monkeypatch):
    """A machine with two interfaces beside the loopback, and some names of hosts."""
    interfaces = {"10.0.0.1": "eth0", "10.1.0.1": "eth1", "fd00::1": "eth1"}
    hosts = {"here": ["10.1.0.1"], "installed": ["127.0.1.1"], "there": ["10.1.0.2"]}
    routes = {"10.1.0.2": ["10.1.0.1"], "10.0.0.2": ["10.0.0.1"]}

    def interface_with(address):
        return "lo" if own_address.is_loopback(address) else interfaces.get(address, "")

    monkeypatch.setattr(own_address, "interface_with", interface_with)
    monkeypatch.setattr(network_interface, "_addresses", lambda host: hosts.get(host, [host]))
    monkeypatch.setattr(
        network_interface, "_from", lambda host: routes.get(hosts.get(host, [host])[0], [])
    )


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        (("127.0.0.1:1", "127.0.0.1:2"), "lo"),
        (("10.0.0.1:1", "10.0.0.1:2"), "eth0"),
        (("10.1.0.1:1", "10.1.0.2:2"), "eth1"),
        (("[fd00::1]:1", "[fd00::2]:2"), "eth1"),
        (("here:1", "there:1"), "eth1"),
        (("installed:1", "there:1"), "eth1"),
        (("192.168.0.1:1", "10.0.0.2:2"), "eth0"),
    ],
)
def test_the_interface_follows_the_cluster(machine, addresses, expected):
    assert network_interface.interface_for(cluster_of(*addresses)) == expected


def test_a_machine_that_the_others_do_not_reach(machine):
    with pytest.raises(RuntimeError, match=r"has the address 192\.168\.0\.1 or a route"):
        network_interface.interface_for(cluster_of("192.168.0.1:1", "192.168.0.2:1"))


def test_this_machine():
    """With the system's own interfaces: whichever it has, each is found by its address."""
    assert network_interface.interface_for(cluster_of("127.0.0.1:1", "127.0.0.1:2")) == "lo"
    assert network_interface.interface_for(cluster_of("localhost:1", "localhost:2")) == "lo"
    assert network_interface.interface_for(cluster_of("192.0.2.1:1", "127.0.0.1:2")) == "lo"
    assert own_address.interface_with("192.0.2.1") == ""
    for _, name in socket.if_nameindex():
        for address in own_address._ipv4_of(name):
            assert own_address.interface_with(address) == name
