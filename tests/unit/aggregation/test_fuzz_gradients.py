"""Random gradients of every kind, through the whole aggregation, against a float64 oracle.

The oracle is `oracle.py`, on whole vectors. The allowed deviation follows from how well a
combination is determined: inner products have a relative error u, so the squared norm of a node of
the tree has the error ``u (Σ|c_i|‖g_i‖)²``. If the vectors of a node nearly cancel, this error is
not small compared to the squared norm, and the direction of the node is not determined. Such
results are only checked against the bound of the published formula.

Shape letters: R replicas, N elements.
"""

import collections
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from support import fake_collectives, oracle, scheme_oracle
from support.fuzzing import fuzz_settings
from support.scheme_oracle import DTYPES

from tf_adasum.aggregation import LocalReductionPlanner, RuleApplication, Scheme, aggregate
from tf_adasum.aggregation.rules import AdaCons, Adasum, Mean, Sum

# Of NumPy, about overflows that are meant.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Relative errors: of inner products in float64 with sums of up to 10^4 terms; of the pairwise op,
# whose inner products and sums are in float32; see the table of `tf_adasum.ops`.
IN_FLOAT64 = 1e-13
PAIRWISE = 4e-6
# Above this part of Σ‖g_i‖ an error bound shows no more than that the result is bounded.
UNDETERMINED = 0.02


# ---- random vectors ----------------------------------------------------------------------------

# What a vector is, and how long it is; "same", "opposite", … are of the first vector.
OWN = ["normal", "zero", "negative zero", "one element", "mixed scales"]
OF_FIRST = ["same", "opposite", "parallel", "antiparallel", "nearly opposite", "orthogonal"]
SPECIAL = ["nan", "inf", "-inf"]
SCALES = ["one", "tiny", "huge", "denormal", "largest"]

LARGEST = {tf.float16: 65504.0, tf.bfloat16: 3.3e38, tf.float32: 3.4e38, tf.float64: 1.7e308}
DENORMAL = {
    tf.float16: 2.0**-24,
    tf.bfloat16: 2.0**-133,
    tf.float32: 2.0**-149,
    tf.float64: 5e-324,
}


def scale_of(name, dtype):
    return {
        "one": 1.0,
        "tiny": {tf.float16: 1e-3, tf.float64: 1e-100}.get(dtype, 1e-30),
        "huge": {tf.float16: 1e3, tf.float64: 1e100}.get(dtype, 1e30),
        "denormal": 7 * DENORMAL[dtype],
        "largest": LARGEST[dtype] / 2,
    }[name]


def vector(random, kind, first):
    """A vector of a kind, of the size of `first`."""
    own = random.standard_normal(first.size)
    factor = random.choice([1.0, 1e-3, 0.3, 7.0])
    if kind in SPECIAL and own.size:
        own[random.integers(own.size)] = float(kind)
    return {
        "zero": own * 0,
        "negative zero": np.abs(own) * -0.0,
        "one element": np.where(np.arange(own.size) == own.size // 2, own, 0),
        "mixed scales": own * 10.0 ** random.integers(-4, 4, own.size),
        "same": first,
        "opposite": -first,
        "parallel": factor * first,
        "antiparallel": -factor * first,
        "nearly opposite": -first * (1 + 10.0 ** -random.integers(1, 9)),
        "orthogonal": own - first * np.sum(own * first) / max(np.sum(first * first), 1e-30),
    }.get(kind, own)


@st.composite
def replicas_of_vectors(draw, replicas, size, dtype, backend):
    """An array [R, size] in the dtype; a failing example shows the kinds and scales."""
    special = SPECIAL if draw(st.sampled_from([False, False, False, True])) else []
    kinds = st.lists(
        st.sampled_from(OWN + OF_FIRST + special), min_size=replicas, max_size=replicas
    )
    scales = st.just("one") if draw(st.booleans()) else st.sampled_from(SCALES)
    # TensorFlow's own threads read these as zero, see ops/reference.py.
    if backend == "tensorflow" and dtype != tf.float16:
        scales = scales.map(lambda scale: "one" if scale == "denormal" else scale)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    first = random.standard_normal(size)
    rows = [vector(random, kind, first) * scale_of(draw(scales), dtype) for kind in draw(kinds)]
    return np.stack(rows).astype(dtype.as_numpy_dtype)


SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple),
    st.sampled_from([(257,), (1023,), (64, 33)]),
)


@st.composite
def replicas_of_gradients(draw, replicas, dtypes, backend):
    """For each replica a list of gradients of these dtypes."""
    variables = []
    for dtype in dtypes:
        shape = draw(SHAPES)
        rows = draw(replicas_of_vectors(replicas, math.prod(shape), dtype, backend))
        variables.append(rows.reshape(replicas, *shape))
    return [[own[replica] for own in variables] for replica in range(replicas)]


# ---- the expected results ----------------------------------------------------------------------


def uncertainty(vector, weight):
    """The relative error of a node's squared norm, in those of inner products."""
    squared = np.sum(vector * vector)
    if squared >= oracle.ZERO_NORM:
        return weight**2 / squared
    # Nothing is left of what was something: exactly, or also on inner products?
    return np.inf if squared > 0 and weight**2 >= oracle.ZERO_NORM else 1.0


def coefficient(own, other):
    squared = np.sum(own * own)
    return 1 - np.sum(own * other) / (2 * squared) if squared >= oracle.ZERO_NORM else 1.0


def amplification_of_adasum(rows_RN):
    """How much the tree amplifies relative errors of inner products."""
    level = [(row, np.linalg.norm(row)) for row in rows_RN]  # vectors, and their Σ|c_i|‖g_i‖
    largest = 1.0
    while len(level) > 1:
        pairs = []
        for (a, of_a), (b, of_b) in zip(level[0::2], level[1::2], strict=False):
            largest = max(largest, uncertainty(a, of_a), uncertainty(b, of_b))
            weight = abs(coefficient(a, b)) * of_a + abs(coefficient(b, a)) * of_b
            pairs.append((oracle.pairwise(a, b), weight))
        level = pairs + (level[-1:] if len(level) % 2 else [])
    return largest


def amplification_of(levels, rows_RN):
    """The same of several levels."""
    total, largest = np.linalg.norm(rows_RN, axis=1).sum(), 1.0
    for radix, combine in levels:
        groups = rows_RN.reshape(-1, radix, rows_RN.shape[1])
        if combine is oracle.adasum:
            largest = max([largest, *map(amplification_of_adasum, groups)])
        rows_RN = np.stack([combine(list(each)) for each in groups])
        shortest = np.linalg.norm(rows_RN, axis=1).min()
        if len(rows_RN) > 1 and rows_RN.any():
            largest = max(largest, (total / max(shortest, 1e-300)) ** 2)
    return largest


def compare(actual, rows, dtype, scheme, error=IN_FLOAT64):
    """Compare a result with the combination of the rows, as far as it is determined.

    Args:
        actual: the result.
        rows: for each replica the gradient.
        dtype: their `tf.DType`.
        scheme: the `Scheme`.
        error: u, the relative error of inner products.

    Returns:
        How the result was compared.
    """
    rows = np.reshape(np.asarray(rows, np.float64), [len(rows), -1])
    actual = np.asarray(actual, np.float64).ravel()
    assert actual.shape == rows[0].shape
    levels = scheme_oracle.levels_of(scheme)
    norms = np.linalg.norm(rows, axis=1)
    total, largest = norms.sum(), float(dtype.max)
    bound = 1.5 ** np.ceil(np.log2(max(2, len(rows)))) * total * (1 + 1e-2)
    if not np.isfinite(bound**2):
        is_spoilt = not np.isfinite(norms**2 if len(levels) == 1 else rows).all()
        assert not (is_spoilt and scheme.rule.needs_gram and np.isfinite(actual).any())
        return "not finite"
    if isinstance(scheme.rule, AdaCons) or scheme.wire_dtype or not actual.size:
        return "not compared"  # see test_adacons and test_wire_dtype
    wanted = scheme_oracle.combine_hierarchically(levels, rows)
    if not np.isfinite(actual).all():
        assert bound > largest, "overflows where nothing is large"
        return "overflow"
    of_levels = scheme_oracle.ROUNDING[dtype] if len(levels) > 1 else 0
    amplification = amplification_of(levels, rows) if isinstance(scheme.rule, Adasum) else 1
    relative = 20 * len(rows) * (error + of_levels) * amplification
    smallest = max(scheme_oracle.SMALLEST[dtype], DENORMAL[dtype]) * len(rows) * len(levels)
    if relative > UNDETERMINED:
        assert (np.abs(actual) <= bound + smallest).all()
        return "bounded"
    allowed = scheme_oracle.ROUNDING[dtype] * 1.01 * np.abs(wanted) + relative * total + smallest
    excess = np.abs(actual - wanted) - allowed
    assert (excess <= 0).all(), (
        f"largest excess {excess.max()} (allowed {allowed[excess.argmax()]}), "
        f"norms {norms}, amplification {amplification:.3g}, {scheme}"
    )
    return "compared"


# ---- aggregation -------------------------------------------------------------------------------


def factorizations(number):
    """All radix plans whose product is this number."""
    if number == 1:
        return [()]
    return [
        (radix, *rest)
        for radix in range(2, number + 1)
        if number % radix == 0
        for rest in factorizations(number // radix)
    ]


RULES = [Adasum(), Adasum("model"), Sum(), Mean(), AdaCons(), AdaCons(granularity="variable")]


@st.composite
def schemes(draw, replicas, wire_dtypes):
    """A scheme whose arguments are accepted."""
    averaged = draw(st.sampled_from([n for n in range(1, replicas + 1) if replicas % n == 0]))
    plan = draw(st.sampled_from([None, *factorizations(replicas // averaged)]))
    options = {"local_reduction_size": averaged, "radix_plan": plan or None}
    options["wire_dtype"] = draw(st.sampled_from(wire_dtypes))
    try:
        return Scheme.from_arguments(draw(st.sampled_from(RULES)), replicas, **options)
    except ValueError as error:
        assert "Received" in str(error)
    hypothesis.reject()


@pytest.mark.parametrize(("way", "count"), [("local", 420), ("collective", 300)])
def test_aggregation(backend, way, count):
    outcomes = collections.Counter()

    @fuzz_settings(count)
    @hypothesis.given(data=st.data())
    def run(data):
        replicas = data.draw(st.integers(1, 9))
        wires = [None, None, "bfloat16", "float16"] if way == "collective" else [None]
        scheme = data.draw(schemes(replicas, wires))
        dtypes = data.draw(st.lists(st.sampled_from(DTYPES), max_size=4))
        if scheme.rule.granularity == "model":
            dtypes = dtypes[:1] * len(dtypes)
        gradients = data.draw(replicas_of_gradients(replicas, dtypes, backend))
        bucket_bytes = data.draw(st.sampled_from([None, 1, 256]))
        if way == "local":
            application = RuleApplication.of_first_step(scheme, len(dtypes))
            application.measures_orthogonality = data.draw(st.booleans())
            results = aggregate(gradients, LocalReductionPlanner(scheme), bucket_bytes, application)
            combined = [result.numpy() for result in results]
        else:
            all_gather_threshold_bytes = data.draw(st.sampled_from([0, 2**20]))
            results, _ = fake_collectives.exchanged_arrays(
                gradients,
                scheme,
                bucket_bytes=bucket_bytes,
                all_gather_threshold_bytes=all_gather_threshold_bytes,
            )
            scheme_oracle.assert_same_bits(results)
            combined = results[0]
        for one, like in zip(combined, gradients[0], strict=True):
            assert one.dtype == like.dtype and one.shape == like.shape
        variables = [[one, *own] for one, *own in zip(combined, *gradients, strict=True)]
        if scheme.rule.granularity == "model" and variables:
            flat = [[np.ravel(vector) for vector in own] for own in variables]
            variables = [list(map(np.concatenate, zip(*flat, strict=True)))]
        for one, *own in variables:
            dtype, is_local = tf.as_dtype(own[0].dtype), way == "local"
            is_pairwise = set(scheme.radix_plan or ()) == {2} and scheme.local_reduction_size == 1
            is_in_float32 = is_pairwise and is_local and backend == "custom" and dtype.size < 8
            error = PAIRWISE if is_in_float32 else IN_FLOAT64
            outcomes[compare(one, own, dtype, scheme, error)] += 1

    run()
    # How many varies: Hypothesis derives many cases from earlier ones.
    assert outcomes["compared"] > 0, outcomes
