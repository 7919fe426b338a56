"""Who shares memory, and whether there is enough of it."""

import pytest

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport import shared_memory

CLUSTER = Cluster(("a:1", "b:2", "c:3"), ("worker 0", "worker 1", "worker 2"), 0)


def test_memory_is_shared_within_one_network_namespace():
    assert shared_memory.namespace_conflict(CLUSTER, [1, 1, 2], [7, 7, 8]) == ""
    why = shared_memory.namespace_conflict(CLUSTER, [1, 2, 1], [7, 7, 8])
    assert why.startswith("worker 0 (a:1), worker 2 (c:3) share /dev/shm, but not")


def test_a_small_dev_shm_is_named():
    assert shared_memory.insufficient_space(CLUSTER, [1, 1, 2], [26, 26, 21]) == ""
    assert shared_memory.insufficient_space(CLUSTER, [1, 1, 2], [26, 25, 21]) == (
        "worker 1 (b:2): /dev/shm has 25 MiB free, and 2 workers need 26 MiB"
    )


@pytest.mark.parametrize(
    ("transports", "free", "is_dangerous"),
    [
        ("posix,tcp", 16, True),
        ("all", 16, True),
        ("^cma", 16, True),
        ("tcp,self", 16, False),
        ("posix,tcp", 15, False),  # UCX leaves it out
        ("posix,tcp", 31, False),
    ],
)
def test_what_the_user_has_chosen_may_crash(transports, free, is_dangerous):
    why = shared_memory.crash_risk(transports, CLUSTER, [1, 1, 1], [free] * 3)
    assert bool(why) == is_dangerous


def test_this_process():
    memory, network, free = shared_memory.facts()
    assert shared_memory.facts()[:2] == (memory, network)
    assert memory and network and free >= 0
