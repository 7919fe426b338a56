"""Who shares memory, and whether there is enough of it."""

import pytest

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.transport import shared_memory

CLUSTER = Cluster(("a:1", "b:2", "c:3"), ("worker 0", "worker 1", "worker 2"), 0)


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
