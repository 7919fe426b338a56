"""Which arguments hold a batch without rows, and the gradients of such a replica."""

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.replicas.empty_replicas import count_rows


def dense(rows):
    return tf.ones([rows, 2])


def ragged(rows):
    return tf.RaggedTensor.from_row_lengths(tf.ones([2 * rows]), [2] * rows)


def sparse(rows):
    return tf.sparse.from_dense(dense(rows))


@pytest.mark.parametrize("make", [dense, ragged, sparse])
def test_a_replica_is_empty_only_if_all_tensors_are(make):
    assert count_rows({"edges": make(0), "nodes": make(0), "scalar": tf.constant(1.0)}) == 0
    assert count_rows({"edges": make(0), "nodes": make(3)}) == 3
    assert count_rows({"edges": make(2), "nodes": make(3)}) == 2
    assert count_rows({"edges": make(3), "nodes": make(0)}) == 3


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (tf.TensorSpec([None, 2]), dense),
        (tf.TensorSpec(None), dense),
        (tf.RaggedTensorSpec([None, None]), ragged),
        (tf.SparseTensorSpec([None, None]), sparse),
    ],
    ids=["rows", "rank", "ragged", "sparse"],
)
def test_a_length_that_is_not_known_when_traced(kind, make):
    # All batches of unknown length count, and none of known length.
    ask = tf.function(
        lambda x, other, y: count_rows([other, x, y]),
        input_signature=[kind, tf.TensorSpec([4]), tf.TensorSpec([None])],
    )
    assert int(ask(make(0), tf.ones([4]), tf.ones([0]))) == 0
    assert int(ask(make(3), tf.ones([4]), tf.ones([2]))) == 2  # the targets
    assert int(ask(make(0), tf.ones([4]), tf.ones([3]))) == 3
    assert int(ask(make(3), tf.ones([4]), tf.ones([0]))) == 3


def test_a_scalar_of_unknown_rank_has_rows():
    ask = tf.function(count_rows, input_signature=[tf.TensorSpec(None)])
    assert int(ask(tf.constant(3.0))) == 1


@pytest.mark.parametrize("kind", ["eager", "graph", "function in run"])
def test_gradients_of_no_rows_are_zeros_and_others_stay(strategy, kind):
    def in_replica(x):
        nan = tf.reduce_mean(x) * 0 / tf.cast(tf.shape(x)[0], tf.float32)
        slices = tf.IndexedSlices(tf.fill([2, 3], nan), tf.constant([1, 4]), tf.constant([5, 3]))
        one, nothing, other = strategy._empty_replicas.zero_where_empty(
            [tf.fill([3], nan + 1), None, slices]
        )
        assert nothing is None
        return one, other.values, other.indices

    signature = [tf.TensorSpec([None, 2])]
    if kind == "function in run":
        in_replica = tf.function(in_replica, input_signature=signature)

    def step(x):
        return strategy.run(in_replica, args=(x,))

    if kind == "graph":
        step = tf.function(step, input_signature=signature)
    for rows in (0, 2, 0):
        one, values, indices = step(dense(rows))
        np.testing.assert_array_equal(one, [1.0 if rows else 0.0] * 3)
        np.testing.assert_array_equal(values, np.zeros([2, 3]))
        np.testing.assert_array_equal(indices, [1, 4])
