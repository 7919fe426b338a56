"""Rules, `aggregate` on local replicas, and `adasum`, against the NumPy oracle on the vectors.

Shape letters: S segments, R replicas, N elements.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import oracle
from support.pairs import BACKENDS, in_pairs

import tf_adasum
from tf_adasum.aggregation import LocalExchange, Scheme, aggregate, rules

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
REPLICA_COUNTS = [*range(1, 10), 16]

# Half a unit in the last place: coefficients and sums are float64, the result is rounded once; 1 %
# more, because stock TensorFlow casts float64 to the 16-bit types through float32. For float64 a
# few units, because the sum itself is rounded at every term.
ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-50}
# The spacing of the subnormals; the smallest normal number where TensorFlow's threads flush them.
SMALLEST = {tf.float16: 2.0**-24, tf.bfloat16: 2.0**-126, tf.float32: 2.0**-126, tf.float64: 0.0}
# The float64 coefficients, as a part of Σ‖g_i‖: inner products carry 1e-16·√n, and the inner nodes
# of the tree amplify that where two gradients cancel to a hundredth of their length, as some of the
# scalars do. An error of a wrong term or order is of size 1.
COEFFICIENT_TOLERANCE = 1e-11

SHAPES = [(), (1,), (17,), (0,), (3, 5), (18011,), (2, 0, 3), ()]


def correlated(dtype, replicas, shape, seed) -> list:
    """Gradients with a common part, so that neither the sum nor the mean is their Adasum."""
    random = np.random.default_rng(seed)
    common = random.standard_normal(shape)
    return [
        np.asarray(common + random.standard_normal(shape)).astype(dtype.as_numpy_dtype)
        for _ in range(replicas)
    ]


def model_gradients(dtype, replicas) -> list:
    """For each replica a gradient for each of SHAPES."""
    by_variable = [correlated(dtype, replicas, shape, i) for i, shape in enumerate(SHAPES)]
    return [list(own) for own in zip(*by_variable, strict=True)]


def local(gradients, rule, **options):
    return aggregate(gradients, LocalExchange(Scheme(rule, len(gradients))), **options)


def norm(vector) -> float:
    return float(np.linalg.norm(np.asarray(vector).astype(np.float64).ravel()))


def assert_rounded(actual, expected, dtype, of_gradients, tolerance=COEFFICIENT_TOLERANCE):
    """`actual` is `expected`, a combination of the gradients given, up to one rounding."""
    assert actual.dtype == dtype and actual.shape == expected.shape
    allowed = 1.01 * ROUNDING[dtype] * np.abs(expected) + SMALLEST[dtype]
    allowed += tolerance * sum(norm(gradient) for gradient in of_gradients)
    error = np.abs(actual.numpy().astype(np.float64) - expected)
    assert (error <= allowed).all(), f"largest excess {np.max(error - allowed)}"


# ---- Adasum against the oracle -----------------------------------------------------------------


@pytest.mark.parametrize("replicas", REPLICA_COUNTS)
def test_the_tree_on_inner_products_is_the_tree_on_vectors(replicas):
    rows = np.stack(correlated(tf.float64, replicas, (40,), seed=replicas))
    segments = [0, 1, 18, 18, 40]
    c = rules.Adasum().coefficients(tf.constant(oracle.segment_gram(rows, segments)))
    assert c.dtype == tf.float64 and c.shape == (4, replicas)
    combined = oracle.segment_weighted_sum(rows, c.numpy(), segments)
    for begin, end in itertools.pairwise(segments):
        expected = oracle.adasum(rows[:, begin:end])
        np.testing.assert_allclose(combined[begin:end], expected, rtol=0, atol=1e-10)
    assert (c.numpy()[2] == 1).all(), "an empty segment has zero norms"


def assert_is_adasum(combined, gradients, dtype):
    assert len(combined) == len(SHAPES)
    for variable, one in enumerate(combined):
        own = [gradient[variable] for gradient in gradients]
        assert_rounded(one, oracle.adasum(own), dtype, own)


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=REPLICA_COUNTS)
def test_aggregate_equals_the_oracle(backend, dtype, replicas):
    gradients = model_gradients(dtype, replicas)
    assert_is_adasum(local(gradients, rules.Adasum()), gradients, dtype)


@pytest.mark.parametrize("bucket_bytes", [64, 1])
def test_aggregate_in_several_buckets_equals_the_oracle(backend, dtype, bucket_bytes):
    gradients = model_gradients(dtype, 3)
    combined = local(gradients, rules.Adasum(), bucket_bytes=bucket_bytes)
    assert_is_adasum(combined, gradients, dtype)


@pytest.mark.parametrize("replicas", [1, 2, 7])
def test_adasum_equals_the_oracle(backend, replicas):
    gradients = model_gradients(tf.float32, replicas)
    assert_is_adasum(tf_adasum.adasum(gradients), gradients, tf.float32)


def test_the_comparison_above_can_fail():
    own = correlated(tf.float32, 5, (17,), seed=0)
    for wrong in (np.sum(own, axis=0), np.mean(own, axis=0), oracle.adasum(own[::-1])):
        with pytest.raises(AssertionError, match="largest excess"):
            assert_rounded(tf.constant(wrong, tf.float32), oracle.adasum(own), tf.float32, own)


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[2, 3, 5])
def test_zero_gradients_on_some_replicas(backend, dtype, replicas):
    for zero in range(replicas):
        own = correlated(dtype, replicas, (40,), seed=zero)
        own[zero] = np.zeros_like(own[zero])
        assert_rounded(tf_adasum.adasum(own), oracle.adasum(own), dtype, own)
    zeros = [np.zeros_like(own[0])] * replicas
    assert (tf_adasum.adasum(zeros).numpy() == 0).all()


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[2, 3, 4])
def test_tiny_and_huge_gradients(backend, dtype, replicas):
    # Squares of float64 have to be normal numbers and finite; the other types are squared in
    # float64, and stay clear of their own subnormals, which stock TensorFlow flushes to zero.
    tiny, huge = {
        tf.float16: (2.0**-10, 2.0**12),
        tf.bfloat16: (2.0**-100, 2.0**100),
        tf.float32: (2.0**-100, 2.0**100),
        tf.float64: (2.0**-230, 2.0**490),
    }[dtype]
    for pattern in ((tiny,), (huge,), (tiny, huge), (huge, tiny, tiny)):
        scales = (pattern * replicas)[:replicas]
        own = [
            gradient * gradient.dtype.type(scale)
            for gradient, scale in zip(correlated(dtype, replicas, (40,), 1), scales, strict=True)
        ]
        expected = oracle.adasum(own)
        assert np.isfinite(expected).all() and expected.any()
        assert_rounded(tf_adasum.adasum(own), expected, dtype, own)


# ---- NaN and Inf -------------------------------------------------------------------------------


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[1, 2, 3, 5], bad=[np.nan, np.inf, -np.inf])
def test_one_bad_number_spoils_its_whole_variable_and_no_other(backend, dtype, replicas, bad):
    gradients = [
        [correlated(dtype, replicas, (20,), variable)[replica] for variable in range(3)]
        for replica in range(replicas)
    ]
    gradients[0][1] *= 0  # beside a zero vector, too
    clean = tf_adasum.adasum(gradients)
    for replica in range(replicas):
        spoilt = [[gradient.copy() for gradient in own] for own in gradients]
        spoilt[replica][1][7] = bad
        before, middle, after = tf_adasum.adasum(spoilt)
        assert not np.isfinite(middle.numpy().astype(np.float64)).any()
        assert before.numpy().tobytes() == clean[0].numpy().tobytes()
        assert after.numpy().tobytes() == clean[2].numpy().tobytes()


@pytest.mark.parametrize("rule", [rules.Sum(), rules.Mean()], ids=repr)
def test_linear_rules_pass_bad_numbers_on(backend, rule):
    gradients = [[np.ones(4, np.float32)] for _ in range(3)]
    gradients[1][0][2] = np.nan
    (combined,) = local(gradients, rule)
    assert np.isnan(combined.numpy()).tolist() == [False, False, True, False]


# ---- properties (design, section 7) ------------------------------------------------------------


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[1, 2, 3, 7, 16])
def test_of_identical_gradients_is_the_gradient(backend, dtype, replicas):
    own = [correlated(dtype, 1, (37,), seed)[0] for seed in range(8)]
    for combined, a in zip(tf_adasum.adasum([own] * replicas), own, strict=True):
        # The coefficients add up to 1 within 1e-15, which rounds away except in float64.
        tolerance = 2e-15 if dtype == tf.float64 else 0
        error = np.abs(combined.numpy().astype(np.float64) - a.astype(np.float64))
        assert (error <= tolerance * np.abs(a.astype(np.float64))).all()


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[1, 2, 3, 7, 16])
def test_of_orthogonal_gradients_is_their_sum(backend, dtype, replicas):
    (total,) = correlated(dtype, 1, (50,), seed=3)
    own = [np.zeros_like(total) for _ in range(replicas)]
    for replica in range(replicas):
        own[replica][replica::replicas] = total[replica::replicas]
    assert tf_adasum.adasum(own).numpy().tobytes() == total.tobytes()


def test_is_symmetric_for_two(backend, dtype):
    a, b = correlated(dtype, 2, (999,), seed=4)
    gram = oracle.segment_gram([a, b], [0, 999])
    one = rules.Adasum().coefficients(tf.constant(gram)).numpy()
    other = rules.Adasum().coefficients(tf.constant(gram[:, ::-1, ::-1])).numpy()
    assert (one == other[:, ::-1]).all()
    # The two terms may be added with one rounding or two: a near tie may go the other way.
    expected = tf_adasum.adasum([b, a]).numpy().astype(np.float64)
    assert_rounded(tf_adasum.adasum([a, b]), expected, dtype, [a, b])


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[2, 3, 5])
def test_is_homogeneous(backend, dtype, replicas):
    own = correlated(dtype, replicas, (99,), seed=5)
    combined = tf_adasum.adasum(own).numpy()
    for power_of_two in (-4.0, -1.0, 0.25):  # exact in every dtype
        factor = combined.dtype.type(power_of_two)
        scaled = tf_adasum.adasum([factor * gradient for gradient in own]).numpy()
        assert (scaled == factor * combined).all()


def test_is_homogeneous_for_any_factor(backend):
    own = correlated(tf.float64, 5, (99,), seed=6)
    combined = tf_adasum.adasum(own).numpy()
    for factor in (-3.0, 1e-7, 1 / 3, 1e9):
        scaled = tf_adasum.adasum([factor * gradient for gradient in own]).numpy()
        np.testing.assert_allclose(scaled, factor * combined, rtol=0, atol=1e-12 * abs(factor))


def test_zero_is_neutral(backend, dtype):
    (a,) = correlated(dtype, 1, (40,), seed=7)
    zero = np.zeros_like(a)
    for own in ([a, zero], [zero, a], [zero, zero, a], [zero, a, zero, zero]):
        assert (tf_adasum.adasum(own).numpy() == a).all()


def test_of_two_descends_wherever_the_mean_does(backend):
    random = np.random.default_rng(8)
    pairs = []
    for angle in np.linspace(0, np.pi, 37):
        for length in (1e-3, 0.3, 1.0, 20.0):
            a, orthogonal = np.linalg.qr(random.standard_normal([30, 2]))[0].T
            pairs.append((a, length * (np.cos(angle) * a + np.sin(angle) * orthogonal)))
    combined = tf_adasum.adasum([list(own) for own in zip(*pairs, strict=True)])
    for (a, b), one in zip(pairs, combined, strict=True):
        # Rounding: the inner product is exactly zero where a = -b.
        assert one.numpy() @ (a + b) >= -1e-14 * (1 + norm(b)) ** 2
    with_one_alone = [one.numpy() @ a for (a, _), one in zip(pairs, combined, strict=True)]
    assert min(with_one_alone) < -1e-3, "angles so wide that the property says something"


# ---- cancellation ------------------------------------------------------------------------------


@in_pairs(
    backend=BACKENDS,
    dtype=[tf.float32, tf.float64],
    k=range(1, 10),
    position=["first pair", "second pair", "every pair"],
)
def test_gradients_that_nearly_cancel(backend, dtype, k, position):
    for seed in range(2):
        a, b, c = (own.astype(np.float64) for own in correlated(tf.float64, 3, (300,), seed))
        opposed = -a * (1 + 10.0**-k)
        own = {
            "first pair": [a, opposed, b, c],
            "second pair": [b, c, a, opposed],
            "every pair": [a, opposed, b, -b * (1 + 10.0**-k)],
        }[position]
        own = [gradient.astype(dtype.as_numpy_dtype) for gradient in own]
        combined = tf_adasum.adasum(own)
        total = sum(norm(gradient) for gradient in own)
        assert np.isfinite(combined.numpy()).all()
        assert norm(combined) <= total * (1 + 1e-6)
        # The inner node has the length ε/2, ε = 10^-k, beside coefficients of 1.5: its squared
        # length is 1e-15·9/(ε²/4) uncertain, relatively, and so is the coefficient that undoes it.
        # At k = 6 the guard begins to take the node for zero, and the oracle is no measure.
        if k <= 5:
            tolerance = max(COEFFICIENT_TOLERANCE, 4e-14 * 10.0 ** (2 * k))
            assert_rounded(combined, oracle.adasum(own), dtype, own, tolerance)


def test_a_node_lost_in_rounding_counts_as_zero():
    a, b = np.array([3.0, 4.0, 0.0]), np.array([1.0, 2.0, 2.0])
    rows = np.stack([a, -a, b])
    gram = oracle.segment_gram(rows, [0, 3])
    # Rounding of 1e-15: ‖a - a‖² and <a - a, b> are no longer zero, and their quotient is anything.
    gram[0, 0, 1] = gram[0, 1, 0] = gram[0, 0, 1] * (1 - 1e-15)
    gram[0, 1, 2] = gram[0, 2, 1] = gram[0, 1, 2] * (1 - 1e-15)
    c = rules.Adasum().coefficients(tf.constant(gram)).numpy()[0]
    np.testing.assert_allclose(c, [1.5, 1.5, 1.0], rtol=1e-12)


def test_inner_products_obey_cauchy_schwarz():
    # No vectors have this matrix; rounding can produce it, with tiny p and q.
    gram = tf.constant([[[1.0, 10.0], [10.0, 1.0]]], tf.float64)
    np.testing.assert_allclose(rules.Adasum().coefficients(gram), [[0.5, 0.5]], rtol=1e-15)


# ---- sum and mean ------------------------------------------------------------------------------


@in_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[1, 2, 3, 7])
def test_sum_and_mean(backend, dtype, replicas):
    gradients = model_gradients(dtype, replicas)
    sums, means = local(gradients, rules.Sum()), local(gradients, rules.Mean())
    for variable, (total, mean) in enumerate(zip(sums, means, strict=True)):
        own = [gradient[variable] for gradient in gradients]
        exact = np.sum([gradient.astype(np.float64) for gradient in own], axis=0)
        assert_rounded(total, exact, dtype, own)
        assert_rounded(mean, exact / replicas, dtype, own)


def test_coefficients_of_sum_and_mean():
    gram = tf.constant(np.full([3, 4, 4], np.nan))
    assert (rules.Sum().coefficients(gram).numpy() == np.ones([3, 4])).all()
    assert (rules.Mean().coefficients(gram).numpy() == np.full([3, 4], 0.25)).all()


# ---- naming and saving rules -------------------------------------------------------------------


class Halves(rules.AggregationRule):
    def coefficients(self, gram):
        return tf.ones_like(gram[:, 0, :]) / 2


def test_get():
    for name, rule_class in {"adasum": rules.Adasum, "mean": rules.Mean, "sum": rules.Sum}.items():
        assert type(rules.get(name)) is rule_class
        assert type(rules.get(name.upper())) is rule_class
    mine = Halves()
    assert rules.get(mine) is mine
    (combined,) = local([[tf.constant([2.0])], [tf.constant([4.0])]], mine)
    assert combined.numpy() == [3.0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("adasun", r"one of \['adacons', 'adasum', 'mean', 'sum'\].*aggregation='adasun'"),
        ("", "aggregation=''"),
        (rules.Mean, r"Pass an instance: Mean\(\)"),
        (Halves, r"Pass an instance: Halves\(\)"),
        (None, "aggregation=None"),
        (3, "aggregation=3"),
        (np.mean, "Received: aggregation=<function mean"),
        (["adasum"], r"Received: aggregation=\['adasum'\]"),
    ],
)
def test_get_refuses(wrong, message):
    with pytest.raises(ValueError, match=message):
        rules.get(wrong)


@pytest.mark.parametrize("wrong", ["models", None, 1])
def test_adasum_refuses_other_granularities(wrong):
    with pytest.raises(ValueError, match=f"granularity={wrong!r}"):
        rules.Adasum(granularity=wrong)


@pytest.mark.parametrize("rule", [rules.Adasum("variable"), rules.Mean(), rules.Sum()], ids=repr)
def test_rules_are_saved_and_restored(rule):
    saved = keras.saving.serialize_keras_object(rule)
    assert saved["registered_name"] == f"tf_adasum>{type(rule).__name__}"
    restored = keras.saving.deserialize_keras_object(saved)
    assert type(restored) is type(rule)
    assert restored.get_config() == rule.get_config()
    assert repr(restored) == repr(rule)
    gram = tf.constant([[[2.0, 1.0], [1.0, 3.0]]], tf.float64)
    assert (restored.coefficients(gram).numpy() == rule.coefficients(gram).numpy()).all()


def test_repr_names_the_arguments():
    assert repr(rules.Adasum()) == "Adasum(granularity='variable')"
    assert repr(rules.Sum()) == "Sum()"


# ---- arguments of aggregate --------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [tf.int32, tf.complex64, tf.bool])
def test_aggregate_refuses_what_is_no_floating_point_number(wrong):
    own = [tf.ones([2]), tf.cast(tf.ones([3]), wrong)]
    with pytest.raises(ValueError, match=f"Received: gradient 1 with dtype {wrong.name}"):
        local([own, own], rules.Adasum())


@pytest.mark.parametrize("shape", [None, [None], [2, None]])
def test_aggregate_refuses_unknown_shapes(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
    def step(gradient):
        return local([[gradient], [gradient]], rules.Adasum())

    with pytest.raises(ValueError, match=r"tf\.ensure_shape.*Received: gradient 0 with shape"):
        step.get_concrete_function()


def test_aggregate_of_nothing():
    assert local([[], []], rules.Adasum()) == []


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32], indirect=True)
def test_repeated_indices_of_indexed_slices_are_added_first(backend, dtype, in_graph):
    rows = correlated(dtype, 3, (4, 3), seed=9)
    indices = [[0, 2, 2, 5], [5, 5, 5, 5], [1, 2, 3, 4]]

    def step():
        sparse = [
            [tf.ones([2], dtype), tf.IndexedSlices(values, positions, [6, 3])]
            for values, positions in zip(rows, indices, strict=True)
        ]
        return local(sparse, rules.Adasum())

    dense = np.zeros([3, 6, 3], np.float32)
    for own, values, positions in zip(dense, rows, indices, strict=True):
        for value, position in zip(values, positions, strict=True):
            own[position] += value.astype(np.float32)
    dense = dense.astype(dtype.as_numpy_dtype)
    _, combined = (tf.function(step, autograph=False) if in_graph else step)()
    assert isinstance(combined, tf.IndexedSlices) and combined.indices.shape.rank == 1
    assert_rounded(tf.convert_to_tensor(combined), oracle.adasum(dense), dtype, dense)


# ---- adasum() ----------------------------------------------------------------------------------


def nested(seed):
    kernel, bias, scale = correlated(tf.float32, 3, (2, 3), seed)
    return {"layer": [kernel, {"bias": bias}], "scale": (scale,)}


@pytest.mark.parametrize("in_graph", [False, True])
def test_adasum_of_nested_structures(backend, in_graph):
    values = [nested(seed) for seed in range(3)]
    combine = tf.function(tf_adasum.adasum) if in_graph else tf_adasum.adasum
    combined = combine(tf.nest.map_structure(tf.constant, values))
    tf.nest.assert_same_structure(combined, values[0])
    by_leaf = zip(*map(tf.nest.flatten, values), strict=True)
    for leaf, own in zip(tf.nest.flatten(combined), by_leaf, strict=True):
        assert_rounded(leaf, oracle.adasum(own), tf.float32, own)


def test_adasum_mixes_dtypes_within_a_structure(backend):
    values = [
        {
            "half": correlated(tf.float16, 2, (5,), 1)[i],
            "double": correlated(tf.float64, 2, (7,), 2)[i],
        }
        for i in range(2)
    ]
    combined = tf_adasum.adasum(values)
    for key, dtype in (("half", tf.float16), ("double", tf.float64)):
        own = [value[key] for value in values]
        assert_rounded(combined[key], oracle.adasum(own), dtype, own)


def test_adasum_of_scalars_numbers_and_generators(backend):
    # On one axis all numbers are parallel: (a + b) / 2.
    assert tf_adasum.adasum([2.0, 4.0]).numpy() == 3.0
    assert tf_adasum.adasum(tf.constant(x) for x in (2.0, 4.0)).numpy() == 3.0
    assert tf_adasum.adasum([[1.0, 0.0]])[0].numpy() == 1.0


ONES = tf.ones([2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"at least one tensor. Received: values=\[\]"),
        ([ONES, [ONES]], "same nested structure"),
        ([[ONES], [ONES, ONES]], "same nested structure"),
        ([{"a": ONES}, {"b": ONES}], "same nested structure"),
        ([[ONES], (ONES,)], "same nested structure"),
        ([ONES, tf.ones([3])], r"float32\[2\] in values\[0\], float32\[3\] in values\[1\]"),
        ([ONES, ONES, tf.ones([])], r"float32\[\] in values\[2\]"),
        ([ONES, tf.ones([2, 1])], r"float32\[2, 1\] in values\[1\]"),
        ([ONES, tf.ones([2], tf.float64)], r"float64\[2\] in values\[1\]"),
        ([tf.ones([2], tf.int32)] * 2, "Received: gradient 0 with dtype int32"),
    ],
    ids=[
        "empty", "tensor and list", "lengths", "keys", "list and tuple",
        "sizes", "scalar", "ranks", "dtypes", "integers",
    ],
)  # fmt: skip
def test_adasum_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        tf_adasum.adasum(values)


class Nothing(rules.Adasum):
    """A user's subclass of one of our rules; what it overrides must not be passed by."""

    def coefficients(self, gram):
        return tf.zeros_like(gram[:, 0, :])


@pytest.mark.parametrize("radix_plan", [None, (4,), (2, 2)])
def test_subclasses_keep_what_they_override(radix_plan):
    scheme = Scheme(Nothing(), 4, radix_plan=radix_plan)
    (combined,) = aggregate([[tf.ones([5])]] * 4, LocalExchange(scheme))
    assert combined.numpy().tolist() == [0] * 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "`values` must be a list .* Received: None"),
        ({"a": [1.0]}, "`values` must be a list .* Received: {'a'"),
        ([{"a": [1.0], "b": None}] * 2, "must not contain None"),
    ],
)
def test_adasum_says_what_it_wants(values, message):
    with pytest.raises(ValueError, match=message):
        tf_adasum.adasum(values)


def test_adasum_is_compiled_by_xla(backend):
    gradients = model_gradients(tf.float32, 3)
    gradients = [[own for own in each if own.size] for each in gradients]
    compiled = tf.function(tf_adasum.adasum, jit_compile=True)(gradients)
    for one, expected in zip(compiled, tf_adasum.adasum(gradients), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-6)
