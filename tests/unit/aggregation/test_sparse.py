"""Sparse gradients: the combination of their rows is that of the dense gradients."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from support import scheme_oracle
from support.all_pairs import BACKENDS, parametrize_all_pairs
from support.fake_collectives import exchanged

from tf_adasum.aggregation import LocalReductionPlanner, Scheme, aggregate
from tf_adasum.aggregation.rules import AdaCons, Adasum, Mean, Sum

ROWS = 23  # of the variable
# For each replica its indices: different numbers of rows, repeated and unsorted ones, none at all.
INDICES = [[7, 2, 7, 7], [], [22, 0, 2], [5] * 9, [2, 5], [7]]
RULES = [Adasum(), AdaCons(), Sum()]


def slices_of(indices, row_shape=(4,), dtype=tf.float32, seed=0, index_dtype=tf.int64):
    """`tf.IndexedSlices` with a part in common to all replicas, of ROWS rows.

    Multiples of 1/64: repeated rows are summed without rounding, in any order.
    """
    random = np.random.default_rng(seed)
    values = np.round(64 + 64 * random.standard_normal([len(indices), *row_shape])) / 64
    return tf.IndexedSlices(
        tf.constant(values, dtype),
        tf.constant(indices, index_dtype, shape=[len(indices)]),
        tf.constant([ROWS, *row_shape], index_dtype),
    )


def replicas_of(indices, **options):
    """For each replica a list of one sparse gradient."""
    return [[slices_of(own, seed=seed, **options)] for seed, own in enumerate(indices)]


def dense(gradient):
    """The whole gradient; the rows of a sparse one are summed in float64 and rounded once."""
    if not isinstance(gradient, tf.IndexedSlices):
        return np.asarray(gradient)
    whole = np.zeros([ROWS, *gradient.values.shape[1:]])
    np.add.at(whole, gradient.indices.numpy(), gradient.values.numpy().astype(np.float64))
    return whole.astype(gradient.dtype.as_numpy_dtype)


def densified(gradients):
    return [[dense(gradient) for gradient in own] for own in gradients]


def everywhere(gradients, scheme):
    """The results of all replicas: through collectives, and in one process."""
    yield exchanged(gradients, scheme)[0]
    yield [aggregate(gradients, LocalReductionPlanner(scheme))]


def assert_is_union(slices, gradients, variable=0):
    """Sorted indices, each once, exactly those that some replica has."""
    like = gradients[0][variable]
    assert isinstance(slices, tf.IndexedSlices)
    union = sorted({int(i) for own in gradients for i in own[variable].indices})
    assert slices.indices.numpy().tolist() == union and slices.indices.dtype == like.indices.dtype
    assert slices.values.dtype == like.values.dtype
    assert slices.values.shape == [len(union), *like.values.shape[1:]]


def assert_combined(results, gradients, scheme, **options):
    """The results are sparse where the gradients are, and equal the dense ones, bit-identical."""
    for own in results:
        for variable, (result, gradient) in enumerate(zip(own, gradients[0], strict=True)):
            if isinstance(gradient, tf.IndexedSlices):
                assert_is_union(result, gradients, variable)
    scheme_oracle.assert_combined(densified(results), densified(gradients), scheme, **options)


# ---- as the dense gradients --------------------------------------------------------------------


@parametrize_all_pairs(
    scheme=[
        *(
            Scheme(rule, 4)
            for rule in (*RULES, scheme_oracle.RankWeightedRule(), scheme_oracle.NormWeightedRule())
        ),
        *(Scheme(rule, 4, local_reduction_size=2) for rule in RULES),
        *(Scheme(Adasum(), int(np.prod(plan)), 1, plan) for plan in ((2, 2), (2, 3), (3, 2))),
    ],
    indices=[INDICES, [[]] * 6, [[], [3], *[[]] * 4], [[3]] * 6, [[0, ROWS - 1]] * 6],
    row_shape=[(), (4,), (2, 3)],
    dtype=scheme_oracle.DTYPES,
    index_dtype=[tf.int32, tf.int64],
    backend=BACKENDS,
)
def test_two_sparse_gradients(scheme, indices, row_shape, dtype, index_dtype, backend):
    indices = indices[: scheme.replicas]
    one = replicas_of(indices, row_shape=row_shape, dtype=dtype, index_dtype=index_dtype)
    other = replicas_of(indices[::-1], dtype=dtype)
    gradients = [own + more for own, more in zip(one, other, strict=True)]
    # The coefficients of AdaCons belong to both variables, and so does their error.
    tolerance = scheme_oracle.COEFFICIENT_TOLERANCE * (1000 if scheme.rule == RULES[1] else 1)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme, tolerance=tolerance)


# ---- details -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_many_repeated_rows_count_in_16_bits(dtype):
    # Summed one after the other in their own dtype, they would stop at 2048 or at 256.
    ones = tf.IndexedSlices(tf.ones([4096, 2], dtype), tf.fill([4096], 3), [ROWS, 2])
    for results in everywhere([[ones], [ones]], Scheme(Adasum(), 2)):
        for (combined,) in results:
            assert combined.indices.numpy().tolist() == [3]
            assert combined.values.numpy().astype(np.float32).tolist() == [[4096, 4096]]


def test_without_a_dense_shape():
    gradients = [[tf.IndexedSlices(own.values, own.indices)] for (own,) in replicas_of(INDICES)]
    for results in everywhere(gradients, Scheme(Adasum(), 6)):
        assert_is_union(results[0][0], gradients)
        assert results[0][0].dense_shape is None


@pytest.mark.parametrize("place", [0, 1])
def test_dense_on_one_local_replica(place):
    """For example, a variable is looked up on one replica and multiplied on the other."""
    gradients = replicas_of(INDICES[:2])
    whole = densified(gradients)
    gradients[place] = [tf.constant(whole[place][0])]
    scheme = Scheme(Adasum(), 2)
    (combined,) = aggregate(gradients, LocalReductionPlanner(scheme))
    assert not isinstance(combined, tf.IndexedSlices)
    scheme_oracle.assert_combined([[combined.numpy()]], whole, scheme)


@pytest.mark.parametrize("indices", [INDICES[:4], [[]] * 4], ids=["some", "none"])
def test_only_the_rows_of_a_variable_are_sent(indices):
    _, hub = exchanged(replicas_of(indices), Scheme(Adasum(), 4))
    most = max(1, *(len(set(own)) for own in indices))  # no collective is empty
    for calls in hub.calls:
        shapes = [(kind, shape.as_list()) for kind, shape in calls]
        assert shapes == [("all_gather", [1, *s]) for s in ([1], [most], [most, 4])]


@pytest.mark.parametrize(
    "indices, kept",
    [
        ([[3, 0, 9], [3, 0, 9]], [3, 0, 9]),  # such as positions, which each batch has
        ([[3, 3, 9], [3, 3, 9]], [3, 3, 9, 3, 3, 9]),
        ([[3, 0, 9], [3, 9, 0]], [3, 0, 9, 3, 9, 0]),
        ([[3, 0], [3, 0, 9]], [3, 0, 3, 0, 9]),
        ([[3], [3, 3]], [3, 3, 3]),
        ([[], [3]], [3]),
        ([[], []], []),
    ],
)
def test_a_mean_has_the_rows_of_one_device(indices, kept):
    """Rows that each batch has once are added up, as on a device with both batches."""
    gradients, scheme = replicas_of(indices), Scheme(Mean(), 2)
    expected = sum(dense(own) for (own,) in gradients) / 2

    @tf.function(input_signature=[[tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)]] * 2)
    def in_graph(*own):
        slices = [[tf.IndexedSlices(*each, [ROWS, 4])] for each in own]
        return aggregate(slices, LocalReductionPlanner(scheme))

    ways = [
        *everywhere(gradients, scheme),
        [in_graph(*([g.values, g.indices] for (g,) in gradients))],
    ]
    for (combined,) in itertools.chain(*ways):
        assert combined.indices.numpy().tolist() == kept
        np.testing.assert_array_equal(dense(combined), expected)


def test_rows_without_elements_are_left_alone():
    slices = [tf.IndexedSlices(tf.zeros([2, 0]), [0, 1], [4, 0]), tf.constant([3.0, 4.0])]
    nothing, combined = aggregate([slices, slices], LocalReductionPlanner(Scheme(Adasum(), 2)))
    assert nothing.shape == (4, 0) and combined.numpy().tolist() == [3, 4]
