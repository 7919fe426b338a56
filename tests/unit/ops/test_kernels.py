"""The kernels of all three implementations, against the NumPy oracle: values, specials, bits.

tensorflow   stock TensorFlow operations
cpu          the compiled op on CPUs
gpu          the compiled op on the first GPU; without a GPU, its GPU kernels on an emulation of
             the CUDA library
"""

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support import emulated_gpu, oracle

import tf_adasum.ops as ops
from tf_adasum.environment_variables import OPS
from tf_adasum.ops import library

pytestmark = pytest.mark.version_independent

SEGMENT_TABLES = {
    "one": [0, 300],
    "none": [0],
    "only empty": [0, 0, 0],
    "many, some empty": [0, 0, 5, 5, 5, 120, 121, 300, 300],
    "length 1": [0, 1],
    "length 17": [0, 17],
    "length 18011": [0, 18011],
    "odd lengths": [0, 1, 18, 18029],
    "thousands": [0, *np.cumsum(np.random.default_rng(0).integers(0, 20, 2000))],
}


def error_of(kernels, dtype, operation):
    """What the arithmetic may lose, relative to the terms; see tf_adasum.ops.

    Float64 sums of at most 18011 products: pairwise-like orders stay near 2^-53·log2(n); the bound
    leaves room for a plain running sum over a block. In float32 fifteen products (on GPUs, up to
    32) are added, and the weighted rows.
    """
    error = 1e-14 if operation == "gram" else 1e-12
    uses_float32 = kernels == "gpu" or (kernels == "cpu" and operation == "pairwise")
    if dtype == tf.float64 or not uses_float32:
        return error
    inner_product = (16 if kernels == "cpu" else 33) * 2.0**-24
    weighted_sum = 20 * 2.0**-24  # of at most 16 rows
    errors = {"gram": inner_product, "weighted_sum": weighted_sum}
    return error + errors.get(operation, inner_product + weighted_sum)


@pytest.fixture(scope="module")
def emulation():
    """The emulated GPU kernels, with the names of the compiled ops."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build the emulation of a GPU")
    module = emulated_gpu.load()
    names = ("pairwise_combine", "segment_gram", "segment_weighted_sum")
    return types.SimpleNamespace(
        **{f"tf_adasum_{name}": getattr(module, f"tf_adasum_emulated_{name}") for name in names}
    )


@pytest.fixture(params=["tensorflow", "cpu", "gpu"])
def kernels(request, monkeypatch):
    """The name of the kernels that `ops` calls."""
    name, status = request.param, library.status()
    is_emulated = name == "gpu" and not tf.config.list_logical_devices("GPU")
    if is_emulated:
        emulated = request.getfixturevalue("emulation")
        monkeypatch.setattr(ops, "_implementation", lambda tensor, device: emulated)
    elif name != "tensorflow" and not status.loaded:
        pytest.skip(f"the compiled op is not loaded: {status.reason}")
    elif name == "gpu" and status.gpu_reason:
        pytest.skip(f"there is a GPU, but {status.gpu_reason}")
    monkeypatch.setenv(OPS, "tensorflow" if name == "tensorflow" else "custom")
    with tf.device("GPU:0" if name == "gpu" and not is_emulated else "CPU:0"):
        yield name


def only(*names):
    return pytest.mark.parametrize("kernels", names, indirect=True)


def random_rows(dtype, row_count, element_count, seed=0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal([row_count, element_count])
    return rows.astype(dtype.as_numpy_dtype)


def bits(tensor) -> bytes:
    return tensor.numpy().tobytes()


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "row_count"),
    [
        *((table, 2) for table in SEGMENT_TABLES),
        *((table, 4) for table in ("length 18011", "thousands")),
        *(("many, some empty", row_count) for row_count in (1, *range(3, 10), 16, 17)),
    ],
)
def test_every_segment_table_and_row_count(kernels, dtype, table, row_count):
    segments = SEGMENT_TABLES[table]
    rows = random_rows(dtype, row_count, segments[-1])
    gram = ops.segment_gram(rows, segments).numpy()
    oracle.assert_gram(gram, rows, segments, error_of(kernels, dtype, "gram"))

    coefficients = np.random.default_rng(1).standard_normal([len(segments) - 1, row_count])
    combined = ops.segment_weighted_sum(rows, coefficients, segments)
    error = error_of(kernels, dtype, "weighted_sum")
    oracle.assert_weighted(combined, rows, coefficients, segments, error)

    if row_count == 2:
        combined = ops.pairwise_combine(*rows, segments)
        oracle.assert_pairwise(combined, *rows, segments, error_of(kernels, dtype, "pairwise"))


@pytest.mark.slow
@only("cpu", "gpu")
def test_a_segment_longer_than_an_int32(kernels):
    if kernels == "gpu" and not tf.config.list_logical_devices("GPU"):
        pytest.skip("the emulation would take hours")
    size = 2**31 + 17
    a = tf.concat([tf.ones([size - 1], tf.bfloat16), tf.fill([1], tf.cast(2.0, tf.bfloat16))], 0)
    assert ops.segment_gram(a[None], [0, size]).numpy().item() == size + 3
    for combined, last in (
        (ops.pairwise_combine(a, a), 2.0),
        (ops.segment_weighted_sum(a[None], [[3.0]], [0, size]), 6.0),
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
        return ops.pairwise_combine(a, b, segments), ops.pairwise_combine(b, a, segments)

    expected = ops.pairwise_combine(a[::-1].copy(), b[::-1].copy(), segments)
    for combined in in_a_graph(a, b):
        assert bits(combined) == bits(expected)


def test_identities_of_pairwise(kernels, dtype):
    a, b = random_rows(dtype, 2, 999)
    assert bits(ops.pairwise_combine(a, a)) == a.tobytes(), "adasum(a, a) = a"
    assert bits(ops.pairwise_combine(a, b)) == bits(ops.pairwise_combine(b, a))
    assert (ops.pairwise_combine(a, -a).numpy() == 0).all()
    even, odd = a.copy(), a.copy()
    even[1::2], odd[::2] = 0, 0
    assert (ops.pairwise_combine(even, odd).numpy() == a).all(), "orthogonal: the sum"
    doubled = ops.pairwise_combine(2 * a, 2 * b).numpy()
    assert (doubled == 2 * ops.pairwise_combine(a, b).numpy()).all(), "a power of two is exact"
    zero = np.zeros_like(a)
    assert (ops.pairwise_combine(a, zero).numpy() == a).all()
    assert (ops.pairwise_combine(zero, a).numpy() == a).all()
    assert (ops.pairwise_combine(zero, zero).numpy() == 0).all()


def test_tiny_and_huge_magnitudes(kernels, dtype):
    # The squares of float64 have to be normal numbers. The other types stay clear of subnormals,
    # which stock TensorFlow flushes to zero.
    tiny, huge = {
        tf.float16: (2.0**-13, 2.0**13),
        tf.bfloat16: (2.0**-100, 2.0**100),
        tf.float32: (2.0**-100, 2.0**100),
        tf.float64: (2.0**-230, 2.0**500),
    }[dtype]
    if kernels == "gpu" and dtype in (tf.bfloat16, tf.float32):
        tiny, huge = 2.0**-50, 2.0**50  # squares have to be normal numbers of float32
    a, b = random_rows(dtype, 2, 100)
    for scale_a, scale_b in ((tiny, tiny), (huge, huge), (tiny, huge), (huge, tiny)):
        x, y = a * dtype.as_numpy_dtype(scale_a), b * dtype.as_numpy_dtype(scale_b)
        error = error_of(kernels, dtype, "pairwise")
        oracle.assert_pairwise(ops.pairwise_combine(x, y), x, y, [0, 100], error)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # ‖a‖² = 1e-156 < 1.4917e-154 <= 4e-154 = ‖b‖²
        (1e-78, 2e-77, oracle.pairwise(1e-78, 2e-77)),
        # ‖a‖² = 1.44e308: twice that is no number.
        (1.2e154, 1.2e154, 1.2e154),
    ],
)
def test_limits_of_squared_norms_in_float64(kernels, a, b, expected):
    combined = ops.pairwise_combine(np.array([a]), np.array([b])).numpy()
    assert combined == expected != 0


@pytest.mark.parametrize(
    ("kernels", "dtype", "spacing"),
    [
        *((kernels, tf.float16, 2.0**-24) for kernels in ("tensorflow", "cpu", "gpu")),
        ("cpu", tf.bfloat16, 2.0**-133),
        ("cpu", tf.float32, 2.0**-149),
    ],
    indirect=["kernels", "dtype"],
)
def test_subnormals_count(kernels, dtype, spacing):
    """Stock TensorFlow's own threads flush those of bfloat16 and float32 to zero."""
    numbers = np.array([1, -2, 3], np.float64) * spacing
    rows = np.tile(numbers, [1, 20_000]).astype(dtype.as_numpy_dtype)
    segments = [0, 60_000]
    assert ops.segment_gram(rows, segments).numpy()[0, 0, 0] == 14 * 20_000 * spacing**2
    assert (ops.segment_weighted_sum(rows, [[1.0]], segments).numpy() == rows[0]).all()


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
    clean = ops.pairwise_combine(*pair, [0, 20, 40, 60]).numpy()
    pair[side, 33] = bad
    combined = ops.pairwise_combine(*pair, [0, 20, 40, 60]).numpy()
    assert np.isnan(combined[20:40].astype(np.float64)).all()
    assert (combined[:20] == clean[:20]).all() and (combined[40:] == clean[40:]).all()


@pytest.mark.parametrize("row_count", [2, 3, 5, 16, 17])
def test_gram_spreads_nan_over_the_products_of_its_row_only(kernels, dtype, row_count):
    rows = random_rows(dtype, row_count, 4000)
    rows[1, 1234] = np.nan
    gram = ops.segment_gram(rows, [0, 100, 4000]).numpy()
    expected = np.zeros([2, row_count, row_count], bool)
    expected[1, 1, :] = expected[1, :, 1] = True
    np.testing.assert_array_equal(np.isnan(gram), expected)


def test_weighted_sum_spreads_a_nan_coefficient_over_its_segment_only(kernels, dtype):
    rows = random_rows(dtype, 2, 10)
    rows[:, 2] = 0
    combined = ops.segment_weighted_sum(rows, [[np.nan, 1.0], [1.0, 1.0]], [0, 5, 10]).numpy()
    assert np.isnan(combined.astype(np.float64)).tolist() == [True] * 5 + [False] * 5


# ---- rounding of the compiled op ---------------------------------------------------------------


@only("cpu")
def test_every_half_and_bfloat16_value_survives(kernels):
    for dtype in (tf.float16, tf.bfloat16):
        every = np.arange(2**16).astype(np.uint16).view(dtype.as_numpy_dtype)
        combined = ops.segment_weighted_sum(every[np.newaxis], [[1.0]], [0, 2**16]).numpy()
        np.testing.assert_array_equal(combined.astype(np.float32), every.astype(np.float32))
        is_nan = np.isnan(every.astype(np.float32))
        assert combined[~is_nan].tobytes() == every[~is_nan].tobytes(), "signs of zeros, too"


@only("cpu")
@pytest.mark.parametrize("coefficient", [1 / 3, 1 + 2.0**-11 + 2.0**-40, 1e-3, 7e4, -1e-9])
def test_half_is_rounded_once(kernels, coefficient):
    # NumPy rounds float64 to float16 directly.
    every = np.arange(2**16).astype(np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    combined = ops.segment_weighted_sum([every], [[coefficient]], [0, len(every)]).numpy()
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
            ops.segment_gram(rows, segments),
            ops.segment_weighted_sum(rows, coefficients, segments),
            ops.pairwise_combine(rows[0], rows[1], segments),
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
@pytest.mark.slow
def test_bits_do_not_depend_on_the_number_of_threads(kernels):
    outputs = [
        subprocess.check_output(
            [sys.executable, "-c", _BITS_WITH_THREADS, threads],
            text=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, OPS: "custom"},
            timeout=180,
        )
        for threads in ("1", "3")
    ]
    assert len(outputs[0].strip()) == 64 and outputs[0] == outputs[1]
