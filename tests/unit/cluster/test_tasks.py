"""The tasks that train together: names, hosts and the number on each host."""

import pytest

from tf_adasum.cluster.tasks import Cluster

THREE = Cluster(("c:3", "[::1]:1", "b:2"), ("chief 0", "worker 0", "worker 1"), 1)


def cluster_on(hosts):
    addresses = tuple(f"{host}:{port + 1}" for port, host in enumerate(hosts))
    return Cluster(addresses, ("worker",) * len(hosts), 0)


def test_names_and_addresses():
    assert THREE.named([2, 0]) == "worker 1 (b:2), chief 0 (c:3)"
    assert [THREE.host_and_port(rank) for rank in range(3)] == [("c", 3), ("::1", 1), ("b", 2)]


@pytest.mark.parametrize(("hosts", "count"), [("a", 1), ("aa", 2), ("abc", 1), ("bbbaaa", 3)])
def test_workers_of_a_host(hosts, count):
    assert cluster_on(hosts).workers_per_host() == count
    assert cluster_on(hosts).hosts == list(hosts)
    assert cluster_on(hosts).spans_hosts == (count < len(hosts))


@pytest.mark.parametrize("hosts", ["aab", "aba", "abab"])
def test_hosts_with_other_numbers_of_workers(hosts):
    assert cluster_on(hosts).workers_per_host() is None and cluster_on(hosts).spans_hosts
