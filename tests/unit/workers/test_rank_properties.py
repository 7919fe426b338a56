"""A worker's place, as users ask for it."""

import pytest

from tf_adasum.cluster import tf_config
from tf_adasum.workers.rank_properties import RankProperties
from tf_adasum.workers.workers import Workers

pytestmark = pytest.mark.version_independent

CLUSTER = '"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:1"]}'


@pytest.mark.parametrize(
    ("job", "index", "rank"), [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)]
)
def test_one_of_the_workers_is_the_first_where_there_is_a_chief(job, index, rank):
    task = f'"task": {{"type": "{job}", "index": {index}}}'
    cluster = tf_config.parse(f"{{{CLUSTER}, {task}}}")

    class Own(RankProperties):
        workers = Workers(cluster.rank, len(cluster.addresses), None, None)

    place = Own()
    assert (place.rank, place.num_workers) == (rank, 3)
    assert place.is_first_worker == (rank == 0)
