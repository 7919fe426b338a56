"""The tasks that train together: their places, names and hosts."""

import pytest

from tf_adasum.cluster.tasks import Cluster, place

THREE = Cluster(("c:3", "[::1]:1", "b:2"), ("chief 0", "worker 0", "worker 1"), 1)


def test_names_and_addresses():
    assert THREE.named([2, 0]) == "worker 1 (b:2), chief 0 (c:3)"
    assert [THREE.host_and_port(rank) for rank in range(3)] == [("c", 3), ("::1", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("hosts", "count"), [("a", 1), ("aa", 2), ("abc", 1), ("aabb", 2), ("bbbaaa", 3)]
)
def test_workers_of_a_host(hosts, count):
    addresses = tuple(f"{host}:{port + 1}" for port, host in enumerate(hosts))
    assert Cluster(addresses, ("worker",) * len(hosts), 0).workers_per_host() == count


@pytest.mark.parametrize("hosts", ["aab", "aba", "abab"])
def test_hosts_with_other_numbers_of_workers(hosts):
    addresses = tuple(f"{host}:{port + 1}" for port, host in enumerate(hosts))
    with pytest.raises(ValueError, match=r"the same number of workers on every host.*a:1, "):
        Cluster(addresses, ("worker",) * len(hosts), 0).workers_per_host()


def test_this_tasks_place():
    jobs = {"worker": ["[::1]:1", "b:2"], "ps": ["p:9"], "chief": ["c:3"]}
    assert place(jobs, "worker", 0, "this test") == THREE


@pytest.mark.parametrize(
    ("jobs", "task_type", "message"),
    [
        ({"worker": ["a:1"]}, None, "this test gives a cluster but not this task's type"),
        ({"worker": ["a:1"], "ps": ["p:1"]}, "ps", "task type 'ps' from this test"),
        ({"worker": {0: "a:1"}}, "worker", "this test must list every task of the job 'worker'"),
        ({"worker": []}, "worker", "this test does not contain this task"),
        ({"worker": ["a:1", "a:1"]}, "worker", "this test gives one address to two tasks"),
        ({"worker": ["a:1", "a"]}, "worker", "this test must give each task's address"),
    ],
)
def test_what_has_no_place(jobs, task_type, message):
    with pytest.raises(ValueError, match=message):
        place(jobs, task_type, 0, "this test")
