"""Groups of replicas: which way a sum goes."""

import numpy as np
import pytest
import tensorflow as tf
from support.fake_collectives import ExchangeHub, FakeCollectives, run_in_turns

from tf_adasum.aggregation.groups import CollectiveGroup


@pytest.mark.parametrize(("elements", "kind"), [(10, "all_gather"), (11, "all_reduce")])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=str)
def test_a_small_sum_is_gathered(elements, kind, order, monkeypatch):
    monkeypatch.setattr("tf_adasum.aggregation.groups.GATHERED_SUM_BYTES", 3 * 8 * 10)
    own = np.random.default_rng(0).standard_normal([3, elements])
    hub = ExchangeHub(3)

    def summed(replica):
        group = CollectiveGroup(FakeCollectives(hub, order, replica), order, replica)
        return group.all_reduce(tf.constant(own[replica])).numpy()

    results = run_in_turns(hub, summed)
    np.testing.assert_allclose(results[0], own.sum(axis=0), rtol=0, atol=1e-15)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    assert [[kind for kind, _ in calls] for calls in hub.calls] == [[kind]] * 3


def test_a_sum_of_unknown_size_is_not_gathered():
    class Ring:
        def all_reduce(self, value):
            return 3 * value

    group = CollectiveGroup(Ring(), [0, 1, 2], 0)
    function = tf.function(group.all_reduce, input_signature=[tf.TensorSpec([None])])
    assert function([1.0, 2.0]).numpy().tolist() == [3.0, 6.0]
