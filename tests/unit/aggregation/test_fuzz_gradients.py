"""Random gradients of every kind, through the operations and the whole pipeline, in float64.

The oracle is `oracle.py`, on whole vectors. What a case may deviate by follows from how well its
combinations are determined: inner products carry a relative error u, so that the squared norm of a
node of the tree is known to ``u (Σ|c_i|‖g_i‖)²``. Where its vectors nearly cancel, that is not
small beside the squared norm itself, and the node's direction, hence what is made of it, is not
determined; there it is checked that the result is bounded as the published form is.

Shape letters: R replicas, S segments, N elements.
"""

import itertools
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from support import expected, fake_collectives, oracle
from support.fuzzing import cases

import tf_adasum
from tf_adasum import ops
from tf_adasum.aggregation import LocalExchange, RuleApplication, Scheme, aggregate, rules
from tf_adasum.ops import library

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
# Relative errors: of inner products in float64 with sums of up to 10^4 terms; of the pairwise op,
# whose inner products and sums are in float32; see the table of `tf_adasum.ops`.
IN_FLOAT64 = 1e-13
PAIRWISE = 4e-6
# Above this part of Σ‖g_i‖ an error bound says no more than that the result is bounded.
UNDETERMINED = 0.02

BACKENDS = ["custom", "tensorflow"]


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    if request.param == "custom" and not library.status().loaded:
        pytest.skip(f"the compiled op is not loaded: {library.status().reason}")
    monkeypatch.setenv(library.CHOICE_VARIABLE, request.param)
    with tf.device("CPU:0"):
        yield request.param


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


def vectors(random, kinds, scales, size, dtype):
    """A vector of each kind and scale, [R, size], in the dtype's NumPy type."""
    first = random.standard_normal(size)
    rows = []
    for kind, scale in zip(kinds, scales, strict=True):
        own = random.standard_normal(size)
        factor = random.choice([1.0, 1e-3, 0.3, 7.0])
        with np.errstate(all="ignore"):
            row = {
                "normal": own,
                "zero": own * 0,
                "negative zero": own * 0 * -1.0,
                "one element": np.where(np.arange(size) == size // 2, own, 0),
                "mixed scales": own * 10.0 ** random.integers(-4, 4, size),
                "same": first,
                "opposite": -first,
                "parallel": factor * first,
                "antiparallel": -factor * first,
                "nearly opposite": -first * (1 + 10.0 ** -random.integers(1, 9)),
                "orthogonal": own - first * np.sum(own * first) / max(np.sum(first * first), 1e-30),
            }.get(kind, own)
            row = row * scale_of(scale, dtype)
            if kind == "negative zero":
                row = -np.abs(row) * 0
            if kind in SPECIAL and size:
                row[random.integers(size)] = float(kind)
            rows.append(row.astype(dtype.as_numpy_dtype))
    return np.stack(rows)


@st.composite
def replicas_of_vectors(draw, sizes, dtype, backend, specials=True):
    """For each size an array [R, size]; and the kinds, which a failing example shows."""
    replicas = draw(st.integers(1, 9))
    kind = st.sampled_from(OWN + OF_FIRST + (SPECIAL if specials else []))
    scale = st.sampled_from(SCALES)
    if draw(st.booleans()):
        scale = st.just("one")
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    result = []
    for size in sizes:
        kinds = draw(st.lists(kind, min_size=replicas, max_size=replicas))
        scales = draw(st.lists(scale, min_size=replicas, max_size=replicas))
        # TensorFlow's own threads read these as zero, see ops/reference.py.
        if backend == "tensorflow" and dtype != tf.float16:
            scales = ["one" if one == "denormal" else one for one in scales]
        result.append(vectors(random, kinds, scales, size, dtype))
    return result


# ---- what they should become -------------------------------------------------------------------


def node(vector, weight=None):
    """A node of the tree: its vector, and ``Σ|c_i|‖g_i‖``."""
    with np.errstate(all="ignore"):
        vector = np.asarray(vector, np.float64)
        return vector, float(np.sqrt(np.sum(vector * vector))) if weight is None else weight


def pairwise(first, second, uncertain):
    """The node of two nodes; notes in `uncertain` how uncertain their squared norms are."""
    (a, weight_a), (b, weight_b) = first, second
    combined = oracle.pairwise(a, b)
    coefficients = []
    with np.errstate(all="ignore"):
        ab = np.sum(a * b)
        for own, weight in (first, second):
            squared = float(np.sum(own * own))
            if not squared < oracle.ZERO_NORM:
                uncertain.append(weight**2 / squared)
                coefficients.append(1 - ab / (2 * squared))
            else:
                if weight > 0 and weight**2 >= oracle.ZERO_NORM:
                    # Exactly nothing left of what was something: is it so on inner products?
                    uncertain.append(1.0 if squared == 0 else np.inf)
                coefficients.append(1.0)
    weight = abs(coefficients[0]) * weight_a + abs(coefficients[1]) * weight_b
    return combined, weight


def adasum(rows_RN):
    """The combination, ‖g‖ of all, and the amplification of relative errors of inner products."""
    level = [node(row) for row in rows_RN]
    uncertain = [1.0]
    total = sum(weight for _, weight in level)
    while len(level) > 1:
        pairs = [pairwise(a, b, uncertain) for a, b in zip(level[0::2], level[1::2], strict=False)]
        level = pairs + (level[-1:] if len(level) % 2 else [])
    return level[0][0], total, max(uncertain)


def assert_adasum(actual_N, rows_RN, dtype, error=IN_FLOAT64, rounding=0.0):
    """`actual_N` is the tree of the rows, up to a relative error of their inner products.

    Args:
        actual_N: the result.
        rows_RN: the rows, in `dtype`.
        dtype: its `tf.DType`.
        error: u.
        rounding: what is lost each time a node is rounded to a dtype, relative to its elements.
    """
    actual = np.asarray(actual_N, np.float64).ravel()
    rows = np.asarray(rows_RN, np.float64)
    assert actual.shape == rows[0].shape
    with np.errstate(all="ignore"):
        squares = np.sum(rows * rows, axis=1)
        products = rows @ rows.T if rows.size else np.zeros([len(rows)] * 2)
    if not np.isfinite(squares).all() or not np.isfinite(products).all():
        hypothesis.event("not finite")
        assert not actual.size or not np.isfinite(actual).any()
        return "not finite"
    wanted, total, amplification = adasum(rows)
    largest = float(dtype.max)
    assert np.isnan(actual).sum() == 0 or not np.isfinite(wanted).all() or total > largest
    relative = 20 * len(rows) * (error + rounding) * amplification
    bound = 1.5 ** np.ceil(np.log2(max(2, len(rows)))) * total * (1 + 1e-2)
    with np.errstate(all="ignore"):
        overflows = np.abs(wanted) > 0.99 * largest
    finite = ~overflows & np.isfinite(wanted)
    if not np.isfinite(actual[finite]).all():
        assert total > 0.5 * largest, "overflows where nothing is large"
        hypothesis.event("overflow")
        return "overflow"
    if relative > UNDETERMINED or not finite.all():
        hypothesis.event("not determined")
        assert (np.abs(actual[finite]) <= bound + float(expected.SMALLEST[dtype])).all()
        return "bounded"
    allowed = expected.ROUNDING[dtype] * 1.01 * np.abs(wanted) + relative * total
    allowed += max(expected.SMALLEST[dtype], DENORMAL[dtype]) * len(rows)
    excess = np.abs(actual - wanted) - allowed
    assert (excess <= 0).all(), (
        f"largest excess {excess.max()} (allowed {allowed[excess.argmax()]}), "
        f"norms {np.sqrt(squares)}, amplification {amplification:.3g}"
    )
    hypothesis.event("compared")
    return "compared"


class Counted:
    """How many cases were compared with the oracle to rounding."""

    def __init__(self):
        self.outcomes = {}

    def add(self, outcome):
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def check(self, part):
        """A test that compares hardly anything shows nothing."""
        total = sum(self.outcomes.values())
        print(self.outcomes)
        assert self.outcomes.get("compared", 0) >= part * total, self.outcomes


# ---- the operations ----------------------------------------------------------------------------


@st.composite
def segment_tables(draw, size):
    inner = draw(st.lists(st.integers(0, size), max_size=5))
    return np.array([0, *sorted(inner), size])


SIZES = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 255, 256, 257, 1023, 4099]))


@cases(60)
@hypothesis.given(data=st.data())
def test_operations(backend, data):
    dtype = data.draw(st.sampled_from(DTYPES))
    size = data.draw(SIZES)
    (rows_RN,) = data.draw(replicas_of_vectors([size], dtype, backend))
    segments = data.draw(segment_tables(size))
    replicas, width = len(rows_RN), len(segments) - 1

    rows_64 = rows_RN.astype(np.float64)
    with np.errstate(all="ignore"):
        gram = ops.segment_gram(rows_RN, segments).numpy()
        wanted = oracle.segment_gram(rows_64, segments)
        absolute = oracle.segment_gram(np.abs(rows_64), segments)
        finite = np.isfinite(absolute)
        assert gram.shape == (width, replicas, replicas)
        np.testing.assert_array_equal(gram, np.swapaxes(gram, 1, 2))
        assert (np.abs(gram - wanted)[finite] <= 1e-13 * absolute[finite] + 1e-320).all()
        assert not np.isfinite(gram[~finite & ~np.isfinite(wanted)]).any()

        random = np.random.default_rng(size)
        coefficients = random.standard_normal([width, replicas])
        combined = ops.segment_weighted_sum(rows_RN, coefficients, segments).numpy()
        wanted = oracle.segment_weighted_sum(rows_64, coefficients, segments)
        terms = oracle.segment_weighted_sum(np.abs(rows_64), np.abs(coefficients), segments)
        sure = terms < 0.99 * float(dtype.max)
        allowed = expected.ROUNDING[dtype] * 1.01 * np.abs(wanted) + 4e-15 * terms
        allowed = allowed + expected.SMALLEST[dtype] + 1e-320
        error = np.abs(combined.astype(np.float64) - wanted)
        assert (error[sure] <= allowed[sure]).all()
        assert not np.isfinite(combined[np.isnan(wanted)].astype(np.float64)).any()

    a, b = rows_RN[0], rows_RN[-1]
    combined = ops.pairwise_combine(a, b, segments).numpy()
    for start, stop in itertools.pairwise(segments):
        here = slice(start, stop)
        error = PAIRWISE if dtype != tf.float64 and backend == "custom" else IN_FLOAT64
        assert_adasum(combined[here], [a[here], b[here]], dtype, error)


# ---- tf_adasum.adasum --------------------------------------------------------------------------

SHAPES = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple),
    st.sampled_from([(257,), (1023,), (64, 33)]),
)


def test_adasum_of_structures(backend):
    counted = Counted()

    @cases(120)
    @hypothesis.given(data=st.data())
    def run(data):
        dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3))
        shapes = [data.draw(SHAPES) for _ in dtypes]
        replicas, values = None, []
        for shape, dtype in zip(shapes, dtypes, strict=True):
            (rows,) = data.draw(replicas_of_vectors([int(np.prod(shape))], dtype, backend))
            replicas = min(len(rows), replicas or len(rows))
            values.append(rows.reshape([len(rows), *shape]))
        as_arrays = data.draw(st.booleans())
        structures = [
            {str(i): own[r] if as_arrays else tf.constant(own[r]) for i, own in enumerate(values)}
            for r in range(replicas)
        ]
        combined = tf_adasum.adasum(structures)
        for i, (own, dtype) in enumerate(zip(values, dtypes, strict=True)):
            result = combined[str(i)]
            assert result.dtype == dtype and result.shape == own.shape[1:]
            flat = own[:replicas].reshape(replicas, int(np.prod(own.shape[1:])))
            counted.add(assert_adasum(result.numpy().ravel(), flat, dtype))

    run()
    counted.check(0.4)


@cases(60)
@hypothesis.given(data=st.data())
def test_adasum_of_sparse_gradients(backend, data):
    dtype = data.draw(st.sampled_from([tf.float16, tf.float32, tf.float64]))
    rows_of_table, width = 9, data.draw(st.integers(1, 4))
    counts = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=9))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    index_type = data.draw(st.sampled_from([np.int32, np.int64]))
    slices, dense = [], []
    for count in counts:
        indices = random.integers(0, rows_of_table, count).astype(index_type)
        kind = data.draw(st.sampled_from(["normal", "zero", "same", "inf"]))
        values = vectors(np.random.default_rng(count), [kind], ["one"], count * width, dtype)
        values = values[0].reshape(count, width)
        slices.append(tf.IndexedSlices(values, indices, [rows_of_table, width]))
        table = np.zeros([rows_of_table, width])
        with np.errstate(all="ignore"):
            np.add.at(table, indices, values.astype(np.float64))
            dense.append(table.astype(dtype.as_numpy_dtype).ravel())
    combined = tf_adasum.adasum(slices)
    assert isinstance(combined, tf.IndexedSlices)
    union = np.unique(np.concatenate([np.asarray(own.indices) for own in slices]))
    np.testing.assert_array_equal(combined.indices, union)
    table = np.zeros([rows_of_table, width])
    table[union] = combined.values.numpy().astype(np.float64)
    if all(np.isfinite(own.astype(np.float64)).all() for own in dense):
        # Repeated rows are summed in float32, or in the dtype itself.
        error = IN_FLOAT64 if dtype == tf.float64 else 2.0**-22
        error = 2.0**-10 if dtype == tf.float16 else error
        assert_adasum(table.ravel(), np.stack(dense), dtype, rounding=error)
    elif union.size:
        assert not np.isfinite(table[union]).any()


# ---- the pipeline, in one place and by collectives ----------------------------------------------

RULES = st.sampled_from(
    [
        rules.Adasum(),
        rules.Adasum("model"),
        rules.Sum(),
        rules.Mean(),
        rules.AdaCons(),
        rules.AdaCons(granularity="variable"),
    ]
)


def factorizations(number):
    """All radix plans whose product it is."""
    if number == 1:
        return [()]
    return [
        (radix, *rest)
        for radix in range(2, number + 1)
        if number % radix == 0
        for rest in factorizations(number // radix)
    ]


@st.composite
def schemes(draw, replicas, wire=False):
    """A scheme, or what its arguments were refused for."""
    rule = draw(RULES)
    averaged = draw(st.sampled_from([n for n in range(1, replicas + 1) if replicas % n == 0]))
    across = replicas // averaged
    plans = [None, *([list(plan) for plan in factorizations(across)] or [[1]])]
    plan = draw(st.sampled_from(plans))
    wire_dtype = draw(st.sampled_from([None, "bfloat16", "float16"])) if wire else None
    try:
        scheme = Scheme.checked(
            rule, replicas, averaged=averaged, radix_plan=plan or None, wire_dtype=wire_dtype
        )
    except ValueError as error:
        assert "Received" in str(error) or "Leave them out" in str(error)
        scheme = None
    hypothesis.assume(scheme is not None)
    return scheme


def assert_pipeline(result, gradients, scheme, backend):
    """The combination of the replicas' gradients, where it is determined; else it is bounded.

    Args:
        result: list of arrays, one for each variable.
        gradients: for each replica the list of its gradients, arrays.
    """
    rule, replicas = scheme.rule, len(gradients)
    by_variable = list(zip(*gradients, strict=True))
    stacks = [np.stack([own.ravel() for own in each]).astype(np.float64) for each in by_variable]
    if rule.granularity == "model" and stacks:
        stacks = [np.concatenate(stacks, axis=1)]
        sizes = [own[0].size for own in by_variable]
        result = [np.concatenate([own.astype(np.float64).ravel() for own in result])]
        dtypes = [tf.as_dtype(own[0].dtype) for own in by_variable]
        rounding = np.repeat([expected.ROUNDING[dtype] for dtype in dtypes], sizes)
        smallest = np.repeat([expected.SMALLEST[dtype] for dtype in dtypes], sizes)
        largest = min(float(dtype.max) for dtype in dtypes)
        groups = [(stacks[0], result[0], rounding, smallest, largest)]
    else:
        groups = []
        for stack, own, each in zip(stacks, result, by_variable, strict=True):
            dtype = tf.as_dtype(each[0].dtype)
            numbers = expected.ROUNDING[dtype], expected.SMALLEST[dtype], float(dtype.max)
            groups.append((stack, own.astype(np.float64).ravel(), *numbers))
    for stack, own, rounding, smallest, largest in groups:
        assert own.shape == stack[0].shape
        if scheme.wire_dtype:
            largest = min(largest, float(scheme.wire_dtype.max))
        yield _check_group(stack, own, rounding, smallest, largest, scheme, replicas, backend)


def _check_group(rows, actual, rounding, smallest, largest, scheme, replicas, backend):
    rule = scheme.rule
    with np.errstate(all="ignore"):
        total = np.sqrt(np.sum(rows * rows, axis=1)).sum()
        squared = total * total
    if not np.isfinite(squared):
        if rule.needs_gram and np.isnan(rows).any():
            assert not actual.size or not np.isfinite(actual).any()
        return "not finite"
    if not rows.size:
        return "empty"
    wanted = expected.in_levels(expected.levels_of(scheme), rows)
    levels = expected.levels_of(scheme)
    amplification = 1.0
    below = rows
    if isinstance(rule, rules.Adasum):
        for radix, combine in levels:
            nodes = below.reshape(-1, radix, below.shape[1])
            if combine is oracle.adasum:
                amplification = max([amplification, *(adasum(each)[2] for each in nodes)])
            below = np.stack([combine(list(each)) for each in nodes])
            kept = np.sqrt(np.sum(below * below, axis=1))
            if len(below) > 1 and (kept > 0).any():
                amplification = max(amplification, (total / max(kept.min(), 1e-300)) ** 2)
    elif isinstance(rule, rules.AdaCons):
        means = rows.reshape(-1, scheme.averaged, rows.shape[1]).mean(axis=1)
        norms = np.sqrt(np.sum(means * means, axis=1))
        if norms.min(initial=np.inf) < 1e-4 or norms.max(initial=0) > 1e6:
            return "not determined"  # its ε
        alpha = means @ means.mean(axis=0) / norms
        amplification = (norms.sum() / max(abs(alpha.sum()), 1e-300)) ** 2
    wire = expected.ROUNDING[scheme.wire_dtype] if scheme.wire_dtype else 0.0
    halving = scheme.radix_plan and set(scheme.radix_plan) == {2} and scheme.averaged == 1
    pairwise_op = halving and isinstance(rule, rules.Adasum) and backend == "custom"
    of_dtype = np.max(rounding, initial=0) if len(levels) > 1 else 0.0
    error = (PAIRWISE if pairwise_op else IN_FLOAT64) + wire + of_dtype
    relative = 20 * replicas * error * amplification
    if relative > UNDETERMINED or total > 0.3 * largest:
        bounded = np.isfinite(actual)
        assert bounded.all() or total > 0.1 * largest or isinstance(rule, rules.AdaCons)
        return "not determined"
    if scheme.wire_dtype == tf.float16 and total > 1e4:
        return "not determined"
    flushed = 2.0**-24 * replicas * 4 if scheme.wire_dtype else 0.0
    # AdaCons combines unit vectors.
    length = total + (replicas if isinstance(rule, rules.AdaCons) else 0)
    allowed = rounding * 1.01 * np.abs(wanted) + relative * length + smallest * 4 * replicas
    if wire and (isinstance(rule, rules.Adasum) or flushed):
        small = [np.sqrt(np.sum(row * row)) for row in rows]
        if min((n for n in small if n > 0), default=1) < 1e-2:  # lost, or nearly, on the wire
            return "not determined"
    excess = np.abs(actual - wanted) - allowed - flushed
    assert (excess <= 0).all(), (
        f"largest excess {excess.max()}, norms {np.sqrt(np.sum(rows * rows, axis=1))}, "
        f"amplification {amplification:.3g}, {scheme}"
    )
    return "compared"


@st.composite
def gradients_of_variables(draw, backend, largest=9):
    shapes = draw(st.lists(SHAPES, min_size=0, max_size=4))
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in shapes]
    replicas = draw(st.integers(1, largest))
    by_variable = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        (rows,) = draw(replicas_of_vectors([int(np.prod(shape))], dtype, backend))
        rows = np.concatenate([rows] * replicas)[:replicas]
        by_variable.append(rows.reshape([replicas, *shape]))
    return [[own[replica] for own in by_variable] for replica in range(replicas)]


def test_local_pipeline(backend):
    counted = Counted()

    @cases(150)
    @hypothesis.given(data=st.data())
    def run(data):
        gradients = data.draw(gradients_of_variables(backend))
        scheme = data.draw(schemes(len(gradients)))
        bucket_bytes = data.draw(st.sampled_from([None, 0, 1, 256]))
        tensors = [[tf.constant(own) for own in each] for each in gradients]
        application = (
            RuleApplication.of_first_step(scheme, len(gradients[0])) if gradients[0] else None
        )
        if application is not None:
            application.measures_orthogonality = data.draw(st.booleans())
        combined = aggregate(tensors, LocalExchange(scheme), bucket_bytes, application)
        for result, own in zip(combined, gradients[0], strict=True):
            assert result.dtype == own.dtype and result.shape == own.shape
        arrays = [result.numpy() for result in combined]
        for outcome in assert_pipeline(arrays, gradients, scheme, backend):
            counted.add(outcome)

    run()
    counted.check(0.3)


def test_collective_pipeline(backend):
    counted = Counted()

    @cases(50)
    @hypothesis.given(data=st.data())
    def run(data):
        gradients = data.draw(gradients_of_variables(backend, largest=8))
        scheme = data.draw(schemes(len(gradients), wire=True))
        options = {
            "gathered_bytes": data.draw(st.sampled_from([0, 2**20])),
            "bucket_bytes": data.draw(st.sampled_from([None, 1, 256])),
        }
        results, _ = fake_collectives.together(gradients, scheme, **options)
        for one in results[1:]:
            for first, own in zip(results[0], one, strict=True):
                assert first.tobytes() == own.tobytes()
        for outcome in assert_pipeline(results[0], gradients, scheme, "tensorflow"):
            counted.add(outcome)

    run()
    counted.check(0.1)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of overflows that are meant
        yield
