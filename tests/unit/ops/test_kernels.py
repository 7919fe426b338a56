"""The kernels of all three implementations, against the NumPy oracle: values, specials, bits.

tensorflow   stock TensorFlow operations
cpu          the compiled op on CPUs
gpu          the compiled op on the first GPU; where there is none, its GPU kernels above an
             emulation of the CUDA library
"""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support import emulated_gpu, oracle

import tf_adasum.ops as ops
from tf_adasum.ops import library

pytestmark = pytest.mark.one_stack

# Half a unit in the last place: the result is rounded once. (For float64, whose terms are rounded
# too, a few units.) assert_rounded allows 1 % more, because stock TensorFlow casts float64 to the
# 16-bit types through float32: a near tie may then go the other way.
ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8, tf.float32: 2.0**-24, tf.float64: 2.0**-50}
# Below this a relative bound says nothing: the spacing of the subnormals for float16, the smallest
# normal number for bfloat16 and float32, whose subnormals TensorFlow's own threads flush to zero.
SMALLEST = {tf.float16: 2.0**-24, tf.bfloat16: 2.0**-126, tf.float32: 2.0**-126, tf.float64: 0.0}
SUBNORMAL_SPACING = {tf.bfloat16: 2.0**-133, tf.float32: 2.0**-149}

# float64 sums of at most 18011 products, relative to Σ|x·y|. Pairwise-like orders stay near
# 2^-53·log2(n); the bound leaves room for a plain running sum over a block.
GRAM_TOLERANCE = 1e-14

SEGMENT_TABLES = {
    "one": [0, 300],
    "none": [0],
    "only empty": [0, 0, 0],
    "many, some empty": [0, 0, 5, 5, 5, 120, 121, 300, 300],
    "length 1": [0, 1],
    "length 17": [0, 17],
    "length 18011": [0, 18011],
    "odd lengths": [0, 1, 18, 18029],
}


@dataclasses.dataclass(frozen=True)
class Kernels:
    """One implementation of the three operations."""

    name: str
    pairwise_combine: Callable
    segment_gram: Callable
    segment_weighted_sum: Callable

    def error(self, dtype, operation) -> float:
        """What the arithmetic may lose beyond float64's, relative to the terms; see tf_adasum.ops.

        Fifteen products (on GPUs, up to 32) are added in float32, as are the weighted rows.
        """
        uses_float32 = self.name == "gpu" or (self.name == "cpu" and operation == "pairwise")
        if dtype == tf.float64 or not uses_float32:
            return 0.0
        inner_product = (16 if self.name == "cpu" else 33) * 2.0**-24
        weighted_sum = 20 * 2.0**-24  # of at most 16 rows
        errors = {"gram": inner_product, "weighted_sum": weighted_sum}
        return errors.get(operation, inner_product + weighted_sum)


def public_ops(name):
    return Kernels(name, ops.pairwise_combine, ops.segment_gram, ops.segment_weighted_sum)


def ops_of_the_emulation(module):
    """The emulated kernels, with arguments converted as `tf_adasum.ops` does."""

    def pairwise_combine(a, b, segments=None):
        a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
        segments = [0, a.shape.num_elements()] if segments is None else segments
        segments = tf.convert_to_tensor(segments, tf.int64)
        return module.tf_adasum_emulated_pairwise_combine(a=a, b=b, segments=segments)

    def segment_gram(rows, segments):
        segments = tf.convert_to_tensor(segments, tf.int64)
        return module.tf_adasum_emulated_segment_gram(rows=rows, segments=segments)

    def segment_weighted_sum(rows, coefficients, segments):
        return module.tf_adasum_emulated_segment_weighted_sum(
            rows=rows,
            coefficients=tf.convert_to_tensor(coefficients, tf.float64),
            segments=tf.convert_to_tensor(segments, tf.int64),
        )

    return Kernels("gpu", pairwise_combine, segment_gram, segment_weighted_sum)


@pytest.fixture(scope="module")
def emulation(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build the emulation of a GPU")
    return ops_of_the_emulation(emulated_gpu.build(tmp_path_factory.mktemp("emulated_gpu")))


@pytest.fixture(params=["tensorflow", "cpu", "gpu"])
def kernels(request, monkeypatch):
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    if request.param == "gpu" and not has_gpu:
        yield request.getfixturevalue("emulation")
        return
    status = library.status()
    if request.param != "tensorflow" and not status.loaded:
        pytest.skip(f"the compiled op is not loaded: {status.reason}")
    if request.param == "gpu" and status.gpu_reason:
        pytest.skip(f"there is a GPU, but {status.gpu_reason}")
    choice = "tensorflow" if request.param == "tensorflow" else "custom"
    monkeypatch.setenv(library.CHOICE_VARIABLE, choice)
    with tf.device("GPU:0" if request.param == "gpu" else "CPU:0"):
        yield public_ops(request.param)


def only(*names):
    return pytest.mark.parametrize("kernels", names, indirect=True)


def random_rows(dtype, row_count, element_count, seed=0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal([row_count, element_count])
    return rows.astype(dtype.as_numpy_dtype)


def assert_rounded(actual, expected, dtype, magnitude, error=0.0):
    """`actual` is `expected` up to one rounding to `dtype`, of terms of size `magnitude`.

    The terms themselves are good to `error`, relative to `magnitude`.
    """
    actual = np.asarray(actual).astype(np.float64)
    allowed = 1.01 * ROUNDING[dtype] * np.abs(expected) + (1e-12 + error) * magnitude
    assert actual.shape == expected.shape
    excess = np.abs(actual - expected) - allowed
    assert (excess <= SMALLEST[dtype]).all(), f"largest excess {excess.max()}"


def assert_combined(kernels, actual, a, b, dtype):
    """`actual` is the Adasum of one segment, to the precision that `tf_adasum.ops` promises."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    xx, yy = np.sum(x * x), np.sum(y * y)
    product = np.sqrt(xx) * np.sqrt(yy)
    # What an error of 1 in the inner products' ratios comes to, element by element.
    magnitude = np.zeros_like(x)
    for vector, squared_norm in ((x, xx), (y, yy)):
        magnitude += np.abs(vector) * (1 + product / squared_norm if squared_norm else 1)
    error = kernels.error(dtype, "pairwise")
    assert_rounded(actual, oracle.pairwise(a, b), dtype, magnitude, error)


def assert_gram(kernels, gram, rows, segments, dtype):
    """`gram` is that of `rows`, to the precision that `tf_adasum.ops` promises."""
    tolerance = GRAM_TOLERANCE + kernels.error(dtype, "gram")
    terms = oracle.segment_gram(np.abs(rows.astype(np.float64)), segments)
    error = np.abs(gram.numpy() - oracle.segment_gram(rows, segments))
    assert (error <= tolerance * terms).all()


def assert_weighted_sum(kernels, combined, rows, coefficients, segments, dtype):
    """The same for `segment_weighted_sum`."""
    terms = oracle.segment_weighted_sum(np.abs(rows), np.abs(coefficients), segments)
    expected = oracle.segment_weighted_sum(rows, coefficients, segments)
    assert_rounded(combined, expected, dtype, terms, kernels.error(dtype, "weighted_sum"))


def bits(tensor) -> bytes:
    return tensor.numpy().tobytes()


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", SEGMENT_TABLES)
@pytest.mark.parametrize("row_count", [1, 4])
def test_gram_of_every_segment_table(kernels, dtype, row_count, table):
    segments = SEGMENT_TABLES[table]
    rows = random_rows(dtype, row_count, segments[-1])
    gram = kernels.segment_gram(rows, segments)
    assert gram.dtype == tf.float64 and gram.shape == (len(segments) - 1, row_count, row_count)
    assert_gram(kernels, gram, rows, segments, dtype)


@pytest.mark.parametrize("row_count", [*range(1, 10), 16, 17])
def test_gram_and_weighted_sum_of_every_row_count(kernels, dtype, row_count):
    segments = [0, 7, 7, 1031]
    rows = random_rows(dtype, row_count, 1031)
    gram = kernels.segment_gram(rows, segments)
    assert_gram(kernels, gram, rows, segments, dtype)
    assert (gram.numpy() == gram.numpy().swapaxes(1, 2)).all(), "symmetric to the last bit"

    coefficients = np.random.default_rng(1).standard_normal([3, row_count])
    combined = kernels.segment_weighted_sum(rows, coefficients, segments)
    assert combined.dtype == dtype
    assert_weighted_sum(kernels, combined, rows, coefficients, segments, dtype)


@pytest.mark.parametrize("table", SEGMENT_TABLES)
def test_weighted_sum_and_pairwise_of_every_segment_table(kernels, dtype, table):
    segments = SEGMENT_TABLES[table]
    a, b = rows = random_rows(dtype, 2, segments[-1])
    coefficients = np.random.default_rng(1).uniform(-1, 1, [len(segments) - 1, 2])
    combined = kernels.segment_weighted_sum(rows, coefficients, segments)
    assert_weighted_sum(kernels, combined, rows, coefficients, segments, dtype)

    combined = kernels.pairwise_combine(a, b, segments).numpy()
    assert combined.dtype == dtype.as_numpy_dtype
    for begin, end in itertools.pairwise(segments):
        assert_combined(kernels, combined[begin:end], a[begin:end], b[begin:end], dtype)


def test_thousands_of_small_segments(kernels):
    # Stock TensorFlow takes one segment after the other.
    count = 1_000 if kernels.name == "tensorflow" else 10_000
    lengths = np.random.default_rng(0).integers(0, 20, count)
    segments = np.concatenate([[0], np.cumsum(lengths)])
    a, b = rows = random_rows(tf.float32, 2, segments[-1])
    gram = kernels.segment_gram(rows, segments).numpy()
    starts = segments[:-1][lengths > 0]
    products = np.add.reduceat(a.astype(np.float64) * b, starts)
    sizes = np.add.reduceat(np.abs(a.astype(np.float64) * b), starts)
    assert (gram[lengths == 0] == 0).all()
    tolerance = GRAM_TOLERANCE + kernels.error(tf.float32, "gram")
    assert (np.abs(gram[lengths > 0, 0, 1] - products) <= tolerance * sizes).all()
    combined = kernels.pairwise_combine(a, b, segments).numpy()
    for s in (0, 1, 17, count // 2, count - 1):
        own = slice(segments[s], segments[s + 1])
        assert_combined(kernels, combined[own], a[own], b[own], tf.float32)


@pytest.mark.slow
@only("cpu", "gpu")
def test_a_segment_longer_than_an_int32(kernels):
    if kernels.name == "gpu" and not tf.config.list_logical_devices("GPU"):
        pytest.skip("the emulation would take hours")
    size = 2**31 + 17
    a = tf.concat([tf.ones([size - 1], tf.bfloat16), tf.fill([1], tf.cast(2.0, tf.bfloat16))], 0)
    assert kernels.segment_gram(a[None], [0, size]).numpy().item() == size + 3
    for combined, last in (
        (kernels.pairwise_combine(a, a), 2.0),
        (kernels.segment_weighted_sum(a[None], [[3.0]], [0, size]), 6.0),
    ):
        assert float(combined[-1]) == last and float(combined[0]) == last / 2
        assert float(combined[2**31 - 1]) == float(combined[2**31 + 1]) == last / 2
        del combined


def test_the_output_may_take_the_place_of_an_input(kernels, dtype):
    a, b = random_rows(dtype, 2, 40_000)
    segments = tf.constant([0, 7, 20_000, 40_000], tf.int64)

    @tf.function(autograph=False)
    def in_a_graph(a, b):
        a, b = tf.reverse(a, [0]), tf.reverse(b, [0])  # nobody else needs these two
        return kernels.pairwise_combine(a, b, segments), kernels.pairwise_combine(b, a, segments)

    expected = kernels.pairwise_combine(a[::-1].copy(), b[::-1].copy(), segments)
    for combined in in_a_graph(a, b):
        assert bits(combined) == bits(expected)


def test_pairwise_keeps_the_shape_and_has_one_segment_by_default(kernels, dtype):
    a, b = random_rows(dtype, 2, 24)
    combined = kernels.pairwise_combine(a.reshape(2, 3, 4), b.reshape(2, 3, 4))
    assert combined.shape == (2, 3, 4) and combined.dtype == dtype
    assert_combined(kernels, combined.numpy().ravel(), a, b, dtype)
    scalar = kernels.pairwise_combine(tf.constant(2.0, dtype), tf.constant(2.0, dtype))
    assert scalar.shape == () and scalar.numpy() == 2


def test_pairwise_properties(kernels, dtype):
    a, b = random_rows(dtype, 2, 999)
    assert bits(kernels.pairwise_combine(a, a)) == a.tobytes(), "adasum(a, a) = a"
    assert bits(kernels.pairwise_combine(a, b)) == bits(kernels.pairwise_combine(b, a))
    assert (kernels.pairwise_combine(a, -a).numpy() == 0).all()
    even, odd = a.copy(), a.copy()
    even[1::2], odd[::2] = 0, 0
    assert (kernels.pairwise_combine(even, odd).numpy() == a).all(), "orthogonal: the sum"
    doubled = kernels.pairwise_combine(2 * a, 2 * b).numpy()
    assert (doubled == 2 * kernels.pairwise_combine(a, b).numpy()).all(), "a power of two is exact"


def test_zero_vectors(kernels, dtype):
    a = random_rows(dtype, 1, 40)[0]
    zero = np.zeros_like(a)
    assert (kernels.pairwise_combine(a, zero).numpy() == a).all()
    assert (kernels.pairwise_combine(zero, a).numpy() == a).all()
    assert (kernels.pairwise_combine(zero, zero).numpy() == 0).all()
    assert (kernels.segment_gram(np.stack([zero, zero]), [0, 40]).numpy() == 0).all()


def test_tiny_and_huge_magnitudes(kernels, dtype):
    # The squares of float64 have to be normal numbers. The other types stay clear of subnormals,
    # which stock TensorFlow flushes to zero.
    tiny, huge = {
        tf.float16: (2.0**-13, 2.0**13),
        tf.bfloat16: (2.0**-100, 2.0**100),
        tf.float32: (2.0**-100, 2.0**100),
        tf.float64: (2.0**-230, 2.0**500),
    }[dtype]
    if kernels.name == "gpu" and dtype in (tf.bfloat16, tf.float32):
        tiny, huge = 2.0**-50, 2.0**50  # squares have to be normal numbers of float32
    a, b = random_rows(dtype, 2, 100)
    for scale_a, scale_b in ((tiny, tiny), (huge, huge), (tiny, huge), (huge, tiny)):
        x, y = a * dtype.as_numpy_dtype(scale_a), b * dtype.as_numpy_dtype(scale_b)
        assert_combined(kernels, kernels.pairwise_combine(x, y), x, y, dtype)


def test_below_the_zero_norm_the_result_is_the_sum(kernels):
    # ‖a‖² = 1e-156 < 1.4917e-154 <= 4e-154 = ‖b‖²
    a, b = np.array([1e-78]), np.array([2e-77])
    assert kernels.pairwise_combine(a, b).numpy() == oracle.pairwise(a, b) != 0


def test_a_squared_norm_just_below_overflow(kernels):
    # ‖a‖² = 1.44e308: twice that is no number.
    a = np.array([1.2e154])
    assert kernels.pairwise_combine(a, a).numpy() == a


def test_half_precision_subnormals_count(kernels):
    smallest = np.array([2.0**-24, -(2.0**-24), 3 * 2.0**-24], np.float16)
    gram = kernels.segment_gram([smallest], [0, 3]).numpy()
    assert gram[0, 0, 0] == 11 * 2.0**-48
    combined = kernels.segment_weighted_sum([smallest], [[1.0]], [0, 3]).numpy()
    assert (combined == smallest).all()


@only("cpu")
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32], indirect=True)
def test_the_compiled_op_keeps_subnormals(kernels, dtype):
    spacing = SUBNORMAL_SPACING[dtype]
    rows = np.tile(np.array([1, -2, 3], np.float64) * spacing, [1, 20_000]).astype(
        dtype.as_numpy_dtype
    )
    segments = [0, 60_000]
    assert kernels.segment_gram(rows, segments).numpy()[0, 0, 0] == 14 * 20_000 * spacing**2
    assert (kernels.segment_weighted_sum(rows, [[1.0]], segments).numpy() == rows[0]).all()


# ---- NaN and Inf -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("other_is_zero", [False, True])
def test_pairwise_spreads_non_finite_values_over_their_segment_only(
    kernels, dtype, bad, side, other_is_zero
):
    pair = random_rows(dtype, 2, 60)
    if other_is_zero:
        pair[1 - side] = 0
    clean = kernels.pairwise_combine(*pair, [0, 20, 40, 60]).numpy()
    pair[side, 33] = bad
    combined = kernels.pairwise_combine(*pair, [0, 20, 40, 60]).numpy()
    assert np.isnan(combined[20:40].astype(np.float64)).all()
    assert (combined[:20] == clean[:20]).all() and (combined[40:] == clean[40:]).all()


def test_gram_and_weighted_sum_propagate_non_finite_values(kernels, dtype):
    rows = random_rows(dtype, 3, 10)
    rows[1, 7] = np.nan
    gram = kernels.segment_gram(rows, [0, 5, 10]).numpy()
    assert np.isfinite(gram[0]).all()
    assert np.isnan(gram[1]).tolist() == [[False, True, False], [True] * 3, [False, True, False]]

    rows = random_rows(dtype, 2, 10)
    rows[:, 2] = 0
    combined = kernels.segment_weighted_sum(rows, [[np.nan, 1.0], [1.0, 1.0]], [0, 5, 10]).numpy()
    assert np.isnan(combined.astype(np.float64)).tolist() == [True] * 5 + [False] * 5


# ---- rounding of the compiled op ---------------------------------------------------------------


@only("cpu")
def test_every_half_and_bfloat16_value_survives(kernels):
    for dtype in (tf.float16, tf.bfloat16):
        every = np.arange(2**16).astype(np.uint16).view(dtype.as_numpy_dtype)
        combined = kernels.segment_weighted_sum(every[np.newaxis], [[1.0]], [0, 2**16]).numpy()
        np.testing.assert_array_equal(combined.astype(np.float32), every.astype(np.float32))
        is_nan = np.isnan(every.astype(np.float32))
        assert combined[~is_nan].tobytes() == every[~is_nan].tobytes(), "signs of zeros, too"


@only("cpu")
@pytest.mark.parametrize("coefficient", [1 / 3, 1 + 2.0**-11 + 2.0**-40, 1e-3, 7e4, -1e-9])
def test_half_is_rounded_once(kernels, coefficient):
    # NumPy rounds float64 to float16 directly.
    every = np.arange(2**16).astype(np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    combined = kernels.segment_weighted_sum([every], [[coefficient]], [0, len(every)]).numpy()
    with np.errstate(over="ignore"):
        expected = (coefficient * every.astype(np.float64)).astype(np.float16)
    assert combined.tobytes() == expected.tobytes()


# ---- determinism -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32], indirect=True)
def test_same_bits_twice_and_in_a_graph(kernels, dtype):
    segments = tf.constant([0, 5, 18011, 60000], tf.int64)
    rows = tf.constant(random_rows(dtype, 3, 60000))
    coefficients = tf.constant(np.random.default_rng(1).standard_normal([3, 3]))

    def everything(rows, coefficients, segments):
        return (
            kernels.segment_gram(rows, segments),
            kernels.segment_weighted_sum(rows, coefficients, segments),
            kernels.pairwise_combine(rows[0], rows[1], segments),
        )

    signature = [
        tf.TensorSpec([None, None], dtype),
        tf.TensorSpec(None, tf.float64),
        tf.TensorSpec([None], tf.int64),
    ]
    first = everything(rows, coefficients, segments)
    again = everything(rows, coefficients, segments)
    static = tf.function(everything, autograph=False)(rows, coefficients, segments)
    dynamic = tf.function(everything, signature, autograph=False)(rows, coefficients, segments)
    for results in zip(first, again, static, dynamic, strict=True):
        assert len({bits(result) for result in results}) == 1


_BITS_WITH_THREADS = """
import hashlib, sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import tf_adasum.ops as ops
rows = np.random.default_rng(0).standard_normal([4, 300_007])
rows[:, ::7] *= 1e-160  # squares that are subnormal: flushed or not, but the same on every thread
segments = [0, 3, 100_000, 300_007]
with tf.device("CPU:0"):
    results = [ops.segment_gram(rows, segments), ops.segment_gram(rows.astype("f2"), segments),
               ops.pairwise_combine(rows[0], rows[1], segments)]
print(hashlib.sha256(b"".join(r.numpy().tobytes() for r in results)).hexdigest())
"""


@only("cpu")
def test_bits_do_not_depend_on_the_number_of_threads(kernels):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _BITS_WITH_THREADS, threads],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, library.CHOICE_VARIABLE: "custom"},
        )
        for threads in ("1", "3")
    ]
    outputs = [process.communicate(timeout=180)[0].strip() for process in processes]
    assert len(outputs[0]) == 64 and outputs[0] == outputs[1]
