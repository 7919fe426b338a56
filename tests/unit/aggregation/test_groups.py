"""Groups of replicas: which way a sum goes."""

import tensorflow as tf

from tf_adasum.aggregation.groups import CollectiveGroup


def test_a_sum_of_unknown_size_is_not_gathered():
    class Ring:
        def all_reduce(self, value):
            return 3 * value

    group = CollectiveGroup(Ring(), [0, 1, 2], 0)
    function = tf.function(group.all_reduce, input_signature=[tf.TensorSpec([None])])
    assert function([1.0, 2.0]).numpy().tolist() == [3.0, 6.0]
