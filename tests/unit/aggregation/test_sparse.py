"""Sparse gradients: what their rows are combined to is what the dense gradients would be.

Shape letters: N replicas, K rows of a replica, U rows of the union, V rows of the variable.
"""

import numpy as np
import pytest
import tensorflow as tf
from support import expected
from support.expected import gradients_of
from support.fake_collectives import exchanged, shuffled, together
from support.pairs import in_pairs

from tf_adasum.aggregation import LocalExchange, Scheme, aggregate, rules, sparse

ROWS = 23  # V
# For each replica its indices: different numbers of rows, repeated and unsorted ones, none at all.
INDICES = [[7, 2, 7, 7], [], [22, 0, 2], [5] * 9]
RULES = [rules.Adasum(), rules.AdaCons(), rules.Sum(), expected.ByReplica(), expected.ByNorm()]
ROW_SHAPES = [(), (4,), (2, 3)]


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


def dense(slices):
    """The whole gradient, summed in float64 and rounded once to its dtype."""
    whole = np.zeros([ROWS, *slices.values.shape[1:]])
    np.add.at(whole, slices.indices.numpy(), slices.values.numpy().astype(np.float64))
    return whole.astype(slices.dtype.as_numpy_dtype)


def densified(gradients):
    return [
        [dense(g) if isinstance(g, tf.IndexedSlices) else np.asarray(g) for g in own]
        for own in gradients
    ]


def everywhere(gradients, scheme, **options):
    """What each replica ends with: through collectives, and in one process."""
    yield exchanged(gradients, scheme, **options)[0]
    yield [aggregate(gradients, LocalExchange(scheme))]


def assert_is_union(slices, gradients, variable=0):
    """Sorted indices, each once, exactly those that some replica has."""
    assert isinstance(slices, tf.IndexedSlices)
    union = sorted({int(i) for own in gradients for i in own[variable].indices})
    assert slices.indices.numpy().tolist() == union
    assert slices.indices.dtype == gradients[0][variable].indices.dtype
    assert slices.values.dtype == gradients[0][variable].values.dtype
    assert slices.values.shape == [len(union), *gradients[0][variable].values.shape[1:]]


def assert_combined(results, gradients, scheme, **options):
    """Sparse where the gradients are, and what the dense ones should be, bit-identical."""
    for own in results:
        for variable, (result, gradient) in enumerate(zip(own, gradients[0], strict=True)):
            if isinstance(gradient, tf.IndexedSlices):
                assert_is_union(result, gradients, variable)
    expected.assert_combined(densified(results), densified(gradients), scheme, **options)


# ---- as the dense gradients --------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
def test_every_rule_on_rows_of_every_shape(rule, row_shape):
    gradients, scheme = replicas_of(INDICES, row_shape=row_shape), Scheme(rule, 4)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


@pytest.mark.parametrize("index_dtype", [tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_indices_of_both_dtypes(index_dtype):
    gradients = replicas_of(INDICES, index_dtype=index_dtype)
    scheme = Scheme(rules.Adasum(), 4)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


@pytest.mark.parametrize(
    "indices",
    [[[], [], []], [[], [3], []], [[3], [3], [3]], [[1], [2], [3]], [[0, ROWS - 1]] * 3],
    ids=["none", "one", "the same", "different", "the ends"],
)
@pytest.mark.parametrize("row_shape", ROW_SHAPES, ids=str)
def test_few_rows(indices, row_shape):
    gradients, scheme = replicas_of(indices, row_shape=row_shape), Scheme(rules.Adasum(), 3)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


@pytest.mark.parametrize("dtype", expected.DTYPES, ids=lambda dtype: dtype.name)
def test_every_dtype(backend, dtype):
    gradients, scheme = replicas_of(INDICES, dtype=dtype), Scheme(rules.Adasum(), 4)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_in_any_order(seed):
    gradients, scheme = replicas_of(INDICES), Scheme(expected.ByReplica(), 4)
    results, _ = exchanged(gradients, scheme, order=shuffled(seed))
    assert_combined(results, gradients, scheme)
    wrong, _ = exchanged(gradients, scheme, order=lambda members: members[::-1], told=sorted)
    with pytest.raises(AssertionError, match="largest excess"):
        assert_combined(wrong, gradients, scheme)


@pytest.mark.parametrize("plan", [(2, 2), (2, 3), (3, 2)], ids=str)
def test_the_levels_of_a_plan(plan):
    replicas = int(np.prod(plan))
    gradients = replicas_of([*INDICES, [2, 5], [7]][:replicas])
    scheme = Scheme(rules.Adasum(), replicas, radix_plan=plan)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


@pytest.mark.parametrize("rule", RULES[:3], ids=repr)
def test_a_rule_on_means(rule):
    gradients, scheme = replicas_of(INDICES), Scheme(rule, 4, averaged=2)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


def test_several_sparse_gradients_of_one_replica():
    by_variable = [replicas_of(INDICES), replicas_of(INDICES[::-1], row_shape=())]
    gradients = [first + second for first, second in zip(*by_variable, strict=True)]
    scheme = Scheme(rules.Adasum(), 4)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)


@in_pairs(
    rule=RULES[:3],
    position=[0, 1, 2],
    options=[
        {},
        {"bucket_bytes": 1},
        {"bucket_bytes": 1, "gathered_bytes": 2**40},
    ],
)
def test_between_dense_gradients(rule, position, options):
    gradients = gradients_of([(5, 7), (1000,)], 4)
    for own, slices in zip(gradients, replicas_of(INDICES), strict=True):
        own[:] = map(tf.constant, own)
        own[position:position] = slices
    scheme = Scheme(rule, 4)
    # The coefficients of AdaCons belong to all variables, and so does their error.
    tolerance = expected.COEFFICIENT_TOLERANCE * (1000 if rule.granularity == "model" else 1)
    results, _ = exchanged(gradients, scheme, **options)
    assert_combined(results, gradients, scheme, tolerance=tolerance)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_spoils_all_rows_and_no_other_variable(bad):
    gradients = [[*own, slices_of([4], seed=9)] for own in replicas_of(INDICES)]
    values = gradients[2][0].values.numpy()
    values[1, 3] = bad
    gradients[2][0] = tf.IndexedSlices(
        tf.constant(values), gradients[2][0].indices, gradients[2][0].dense_shape
    )
    for results in everywhere(gradients, Scheme(rules.Adasum(), 4)):
        for spoilt, other in results:
            assert_is_union(spoilt, gradients)
            assert np.isnan(spoilt.values).all()
            assert other.values.numpy().tobytes() == gradients[0][1].values.numpy().tobytes()


# ---- details -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_many_repeated_rows_count_in_16_bits(dtype):
    # One after the other in their own dtype they would stop at 2048, or at 256.
    ones = tf.IndexedSlices(tf.ones([4096, 2], dtype), tf.fill([4096], 3), [ROWS, 2])
    for results in everywhere([[ones], [ones]], Scheme(rules.Adasum(), 2)):
        for (combined,) in results:
            assert combined.indices.numpy().tolist() == [3]
            assert combined.values.numpy().astype(np.float32).tolist() == [[4096, 4096]]


def test_coalesced():
    indices, values = sparse.coalesced(
        tf.IndexedSlices(tf.constant([1.0, 2.0, 4.0]), tf.constant([5, 3, 5]))
    )
    assert indices.dtype == tf.int64 and indices.numpy().tolist() == [3, 5]
    assert values.numpy().tolist() == [[2.0], [5.0]]


def test_without_a_dense_shape():
    gradients = replicas_of(INDICES)
    for own in gradients:
        own[0] = tf.IndexedSlices(own[0].values, own[0].indices)
    scheme = Scheme(rules.Adasum(), 4)
    for results in everywhere(gradients, scheme):
        assert_combined(results, gradients, scheme)
        assert results[0][0].dense_shape is None


@pytest.mark.parametrize("first", ["sparse", "dense"])
def test_dense_on_one_local_replica(first):
    """As where a variable is looked up on one replica and multiplied on the other."""
    gradients = replicas_of(INDICES[:2])
    whole = densified(gradients)
    place = 1 if first == "sparse" else 0
    gradients[place] = [tf.constant(whole[place][0])]
    scheme = Scheme(rules.Adasum(), 2)
    (combined,) = aggregate(gradients, LocalExchange(scheme))
    assert not isinstance(combined, tf.IndexedSlices)
    expected.assert_combined([[combined.numpy()]], whole, scheme)


def test_rows_travel_not_the_variable():
    gradients = replicas_of(INDICES)
    _, hall = exchanged(gradients, Scheme(rules.Adasum(), 4))
    most = max(len(set(own)) for own in INDICES)
    for calls in hall.calls:
        shapes = [(kind, shape.as_list()) for kind, shape in calls]
        assert shapes == [("all_gather", [1, *s]) for s in ([1], [most], [most, 4])]


def test_only_dense_gradients_send_no_rows(sums_by_a_ring):
    _, hall = together(gradients_of([(50,)], 3), Scheme(rules.Adasum(), 3, radix_plan=(3,)))
    assert [kind for kind, _ in hall.calls[0]] == ["all_to_all", "all_reduce", "all_gather"]


# ---- graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["collectives", "local"])
def test_a_graph_for_any_number_of_rows(way):
    row_shape, scheme, traces = (2, 3), Scheme(rules.Adasum(), 3), []
    specs = [
        (
            tf.TensorSpec([None, *row_shape], tf.float32),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([2, 3], tf.float32),
        )
    ] * 3

    @tf.function(input_signature=[specs], autograph=False)
    def step(replicas):
        traces.append(None)
        shape = tf.constant([ROWS, *row_shape], tf.int64)
        gradients = [
            [tf.IndexedSlices(values, indices, shape), beside]
            for values, indices, beside in replicas
        ]
        if way == "local":
            return [aggregate(gradients, LocalExchange(scheme))]
        return exchanged(gradients, scheme)[0]

    beside = [tf.constant(own) for (own,) in gradients_of([(2, 3)], 3)]
    for indices in (INDICES[:3], INDICES[1:], [[]] * 3, [[1, 2]] * 3):
        gradients = replicas_of(indices, row_shape=row_shape)
        gradients = [[*own, one] for own, one in zip(gradients, beside, strict=True)]
        results = step([(own.values, own.indices, one) for own, one in gradients])
        assert_combined(results, gradients, scheme)
    assert len(traces) == 1


def test_rows_without_elements_are_left_alone():
    slices = [tf.IndexedSlices(tf.zeros([2, 0]), [0, 1], [4, 0]), tf.constant([3.0, 4.0])]
    nothing, combined = aggregate([slices, slices], LocalExchange(Scheme(rules.Adasum(), 2)))
    assert nothing.shape == (4, 0) and combined.numpy().tolist() == [3, 4]
