"""The three operations, on the compiled op and on stock TensorFlow, against the NumPy oracle."""

import itertools
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import oracle
import pytest
import tensorflow as tf

import tf_adasum.ops as ops
from tf_adasum.ops import library

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]

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


def random_rows(dtype, row_count, element_count, seed=0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal([row_count, element_count])
    return rows.astype(dtype.as_numpy_dtype)


def assert_rounded(actual, expected, dtype, magnitude=None):
    """`actual` is `expected` up to one rounding to `dtype`, of terms of size `magnitude`."""
    actual = np.asarray(actual).astype(np.float64)
    magnitude = np.abs(expected) if magnitude is None else magnitude
    allowed = 1.01 * ROUNDING[dtype] * np.abs(expected) + 1e-12 * magnitude + SMALLEST[dtype]
    assert actual.shape == expected.shape
    error = np.abs(actual - expected)
    assert (error <= allowed).all(), f"largest excess {np.max(error - allowed)}"


# Inner products in float32, fifteen products at a time, are good to 16·2^-24 of ‖a‖‖b‖; the two
# coefficients, their products and the sum are rounded to float32. Float64 is not touched by that.
FLOAT32_PAIRWISE = 24 * 2.0**-24


def assert_combined(actual, a, b, dtype):
    """`actual` is the Adasum of one segment, to the precision that `tf_adasum.ops` promises."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    xx, yy = np.sum(x * x), np.sum(y * y)
    product = np.sqrt(xx) * np.sqrt(yy)
    # What an error of 1 in the coefficients' ratios to the norms comes to, element by element.
    magnitude = np.zeros_like(x)
    for vector, squared_norm in ((x, xx), (y, yy)):
        magnitude += np.abs(vector) * (1 + product / squared_norm if squared_norm else 1)
    if dtype != tf.float64 and ops.backend() == "custom":
        magnitude *= FLOAT32_PAIRWISE * 1e12  # assert_rounded allows 1e-12 of it
    assert_rounded(actual, oracle.pairwise(a, b), dtype, magnitude)


def bits(tensor) -> bytes:
    return tensor.numpy().tobytes()


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", SEGMENT_TABLES)
@pytest.mark.parametrize("row_count", [1, 4])
def test_gram_of_every_segment_table(backend, dtype, row_count, table):
    segments = SEGMENT_TABLES[table]
    rows = random_rows(dtype, row_count, segments[-1])
    gram = ops.segment_gram(rows, segments)
    assert gram.dtype == tf.float64
    absolute = oracle.segment_gram(np.abs(rows.astype(np.float64)), segments)
    np.testing.assert_array_less(
        np.abs(gram.numpy() - oracle.segment_gram(rows, segments)),
        GRAM_TOLERANCE * absolute + np.finfo(float).tiny,
    )


@pytest.mark.parametrize("row_count", [*range(1, 10), 16])
def test_gram_and_weighted_sum_of_every_row_count(backend, dtype, row_count):
    segments = [0, 7, 7, 1031]
    rows = random_rows(dtype, row_count, 1031)
    gram = ops.segment_gram(rows, segments).numpy()
    absolute = oracle.segment_gram(np.abs(rows.astype(np.float64)), segments)
    error = np.abs(gram - oracle.segment_gram(rows, segments))
    assert (error <= GRAM_TOLERANCE * absolute).all()
    assert (gram == gram.swapaxes(1, 2)).all(), "symmetric to the last bit"

    coefficients = np.random.default_rng(1).standard_normal([3, row_count])
    combined = ops.segment_weighted_sum(rows, coefficients, segments)
    assert combined.dtype == dtype
    magnitude = oracle.segment_weighted_sum(np.abs(rows), np.abs(coefficients), segments)
    expected = oracle.segment_weighted_sum(rows, coefficients, segments)
    assert_rounded(combined, expected, dtype, magnitude)


@pytest.mark.parametrize("table", SEGMENT_TABLES)
def test_weighted_sum_and_pairwise_of_every_segment_table(backend, dtype, table):
    segments = SEGMENT_TABLES[table]
    a, b = rows = random_rows(dtype, 2, segments[-1])
    magnitude = np.abs(rows.astype(np.float64)).sum(axis=0)

    coefficients = np.random.default_rng(1).uniform(-1, 1, [len(segments) - 1, 2])
    combined = ops.segment_weighted_sum(rows, coefficients, segments)
    expected = oracle.segment_weighted_sum(rows, coefficients, segments)
    assert_rounded(combined, expected, dtype, magnitude)

    combined = ops.pairwise_combine(a, b, segments).numpy()
    assert combined.dtype == dtype
    for begin, end in itertools.pairwise(segments):
        assert_combined(combined[begin:end], a[begin:end], b[begin:end], dtype)


def test_pairwise_keeps_the_shape_and_has_one_segment_by_default(backend, dtype):
    a, b = random_rows(dtype, 2, 24)
    combined = ops.pairwise_combine(a.reshape(2, 3, 4), b.reshape(2, 3, 4))
    assert combined.shape == (2, 3, 4) and combined.dtype == dtype
    assert_combined(combined.numpy().ravel(), a, b, dtype)
    scalar = ops.pairwise_combine(tf.constant(2.0, dtype), tf.constant(2.0, dtype))
    assert scalar.shape == () and scalar.numpy() == 2


def test_pairwise_properties(backend, dtype):
    a, b = random_rows(dtype, 2, 999)
    assert bits(ops.pairwise_combine(a, a)) == a.tobytes(), "adasum(a, a) = a"
    assert bits(ops.pairwise_combine(a, b)) == bits(ops.pairwise_combine(b, a))
    assert (ops.pairwise_combine(a, -a).numpy() == 0).all()
    even, odd = a.copy(), a.copy()
    even[1::2], odd[::2] = 0, 0
    assert (ops.pairwise_combine(even, odd).numpy() == a).all(), "orthogonal: the sum"
    doubled = ops.pairwise_combine(2 * a, 2 * b).numpy()
    assert (doubled == 2 * ops.pairwise_combine(a, b).numpy()).all(), "a power of two is exact"


def test_zero_vectors(backend, dtype):
    a = random_rows(dtype, 1, 40)[0]
    zero = np.zeros_like(a)
    assert (ops.pairwise_combine(a, zero).numpy() == a).all()
    assert (ops.pairwise_combine(zero, a).numpy() == a).all()
    assert (ops.pairwise_combine(zero, zero).numpy() == 0).all()
    assert (ops.segment_gram(np.stack([zero, zero]), [0, 40]).numpy() == 0).all()


def test_tiny_and_huge_magnitudes(backend, dtype):
    # The squares of float64 have to be normal numbers. The other types stay clear of subnormals,
    # which stock TensorFlow flushes to zero.
    tiny, huge = {
        tf.float16: (2.0**-13, 2.0**13),
        tf.bfloat16: (2.0**-100, 2.0**100),
        tf.float32: (2.0**-100, 2.0**100),
        tf.float64: (2.0**-230, 2.0**500),
    }[dtype]
    a, b = random_rows(dtype, 2, 100)
    for scale_a, scale_b in ((tiny, tiny), (huge, huge), (tiny, huge), (huge, tiny)):
        x, y = a * dtype.as_numpy_dtype(scale_a), b * dtype.as_numpy_dtype(scale_b)
        assert_combined(ops.pairwise_combine(x, y), x, y, dtype)


def test_below_the_zero_norm_the_result_is_the_sum(backend):
    # ‖a‖² = 1e-156 < 1.4917e-154 <= 4e-154 = ‖b‖²
    a, b = np.array([1e-78]), np.array([2e-77])
    assert ops.pairwise_combine(a, b).numpy() == oracle.pairwise(a, b) != 0


def test_half_precision_subnormals_count(backend):
    smallest = np.array([2.0**-24, -(2.0**-24), 3 * 2.0**-24], np.float16)
    gram = ops.segment_gram([smallest], [0, 3]).numpy()
    assert gram[0, 0, 0] == 11 * 2.0**-48
    combined = ops.segment_weighted_sum([smallest], [[1.0]], [0, 3]).numpy()
    assert (combined == smallest).all()


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32], indirect=True)
def test_the_compiled_op_keeps_subnormals(backend, dtype):
    spacing = SUBNORMAL_SPACING[dtype]
    rows = np.tile(np.array([1, -2, 3], np.float64) * spacing, [1, 20_000]).astype(
        dtype.as_numpy_dtype
    )
    segments = [0, 60_000]
    assert ops.segment_gram(rows, segments).numpy()[0, 0, 0] == 14 * 20_000 * spacing**2
    assert (ops.segment_weighted_sum(rows, [[1.0]], segments).numpy() == rows[0]).all()


# ---- NaN and Inf -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("other_is_zero", [False, True])
def test_pairwise_spreads_non_finite_values_over_their_segment_only(
    backend, dtype, bad, side, other_is_zero
):
    pair = random_rows(dtype, 2, 60)
    if other_is_zero:
        pair[1 - side] = 0
    clean = ops.pairwise_combine(*pair, [0, 20, 40, 60]).numpy()
    pair[side, 33] = bad
    combined = ops.pairwise_combine(*pair, [0, 20, 40, 60]).numpy()
    assert np.isnan(combined[20:40].astype(np.float64)).all()
    assert (combined[:20] == clean[:20]).all() and (combined[40:] == clean[40:]).all()


def test_gram_and_weighted_sum_propagate_non_finite_values(backend, dtype):
    rows = random_rows(dtype, 3, 10)
    rows[1, 7] = np.nan
    gram = ops.segment_gram(rows, [0, 5, 10]).numpy()
    assert np.isfinite(gram[0]).all()
    assert np.isnan(gram[1]).tolist() == [[False, True, False], [True] * 3, [False, True, False]]

    rows = random_rows(dtype, 2, 10)
    rows[:, 2] = 0
    combined = ops.segment_weighted_sum(rows, [[np.nan, 1.0], [1.0, 1.0]], [0, 5, 10]).numpy()
    assert np.isnan(combined.astype(np.float64)).tolist() == [True] * 5 + [False] * 5


# ---- rounding of the compiled op ---------------------------------------------------------------


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_every_half_and_bfloat16_value_survives(backend):
    for dtype in (tf.float16, tf.bfloat16):
        every = np.arange(2**16).astype(np.uint16).view(dtype.as_numpy_dtype)
        combined = ops.segment_weighted_sum(every[np.newaxis], [[1.0]], [0, 2**16]).numpy()
        np.testing.assert_array_equal(combined.astype(np.float32), every.astype(np.float32))
        is_nan = np.isnan(every.astype(np.float32))
        assert combined[~is_nan].tobytes() == every[~is_nan].tobytes(), "signs of zeros, too"


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
@pytest.mark.parametrize("coefficient", [1 / 3, 1 + 2.0**-11 + 2.0**-40, 1e-3, 7e4, -1e-9])
def test_half_is_rounded_once(backend, coefficient):
    # NumPy rounds float64 to float16 directly.
    every = np.arange(2**16).astype(np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    combined = ops.segment_weighted_sum([every], [[coefficient]], [0, len(every)]).numpy()
    with np.errstate(over="ignore"):
        expected = (coefficient * every.astype(np.float64)).astype(np.float16)
    assert combined.tobytes() == expected.tobytes()


# ---- determinism -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float32], indirect=True)
def test_same_bits_twice_and_in_a_graph(backend, dtype):
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
    static = tf.function(everything)(rows, coefficients, segments)
    dynamic = tf.function(everything, input_signature=signature)(rows, coefficients, segments)
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


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_bits_do_not_depend_on_the_number_of_threads(backend):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _BITS_WITH_THREADS, threads],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, library.CHOICE_VARIABLE: "custom"},
        )
        for threads in ("1", "3")
    ]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert len(outputs[0]) == 64 and outputs[0] == outputs[1]


# ---- arguments ---------------------------------------------------------------------------------

ROWS = np.ones([2, 6], np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.segment_gram(ROWS.astype(int), [0, 6]), "rows.dtype=int64"),
        (lambda: ops.segment_gram(ROWS.astype(complex), [0, 6]), "rows.dtype=complex128"),
        (lambda: ops.segment_gram(ROWS[0], [0, 6]), r"rows.shape=\(6,\)"),
        (lambda: ops.segment_gram(ROWS[:0], [0, 6]), r"rows.shape=\(0, 6\)"),
        (lambda: ops.segment_gram(ROWS, []), r"segments.shape=\(0,\)"),
        (lambda: ops.segment_gram(ROWS, [[0, 6]]), r"segments.shape=\(1, 2\)"),
        (lambda: ops.segment_gram(ROWS, tf.constant([0, 6])), "segments.dtype=int32"),
        (lambda: ops.segment_gram(ROWS, [1, 6]), r"segments=\[1 6\]"),
        (lambda: ops.segment_gram(ROWS, [0, 5]), r"end at 6.*segments=\[0 5\]"),
        (lambda: ops.segment_gram(ROWS, [0, 4, 3, 6]), r"segments=\[0 4 3 6\]"),
        (lambda: ops.segment_weighted_sum(ROWS, [[1.0]], [0, 6]), r"coefficients.shape=\(1, 1\)"),
        (lambda: ops.segment_weighted_sum(ROWS, [1.0, 1.0], [0, 6]), r"coefficients.shape=\(2,\)"),
        (lambda: ops.segment_weighted_sum(ROWS, [[1j, 1]], [0, 6]), "dtype=complex128"),
        (lambda: ops.pairwise_combine(ROWS, ROWS[:1]), r"b.shape=\(1, 6\)"),
        (lambda: ops.pairwise_combine(ROWS, ROWS.astype(float)), "b.dtype=float64"),
        (lambda: ops.pairwise_combine(ROWS, ROWS, [0, 6]), "end at 12"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(backend, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("operation", ["gram", "weighted_sum", "pairwise"])
def test_wrong_segments_are_refused_at_run_time(backend, operation):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32), tf.TensorSpec([None], tf.int64)])
    def run(rows, segments):
        if operation == "gram":
            return ops.segment_gram(rows, segments)
        if operation == "pairwise":
            return ops.pairwise_combine(rows[0], rows[1], segments)
        return ops.segment_weighted_sum(rows, tf.ones([tf.size(segments) - 1, 2]), segments)

    assert np.isfinite(run(ROWS, [0, 2, 6]).numpy()).all()
    for wrong in ([1, 6], [0, 5], [0, 4, 3, 6], [0, 7], [0, -1, 6], []):
        # With no offset at all the coefficients of the test itself cannot be made: also refused.
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"segments|negative|>= 0"):
            run(ROWS, tf.constant(wrong, tf.int64))


def test_wrong_shapes_are_refused_at_run_time(backend):
    unknown = tf.TensorSpec(None, tf.float32)
    gram = tf.function(lambda rows: ops.segment_gram(rows, [0, 6]), input_signature=[unknown])
    weighted_sum = tf.function(
        lambda rows, c: ops.segment_weighted_sum(rows, c, [0, 6]), input_signature=[unknown] * 2
    )
    pairwise = tf.function(ops.pairwise_combine, input_signature=[unknown] * 2)
    assert pairwise(ROWS, ROWS).shape == (2, 6)
    for call in (
        lambda: gram(ROWS[0]),
        lambda: gram(ROWS[:0]),
        lambda: weighted_sum(ROWS, tf.ones([1, 3])),
        lambda: weighted_sum(ROWS, tf.ones([2, 2])),
        lambda: pairwise(ROWS, ROWS[:1]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected|compatible"):
            call()


# ---- choice of the backend ---------------------------------------------------------------------


GPUS = ("GPU", "GPU:1", "/device:GPU:0", "/job:worker/replica:0/task:1/device:GPU:0")


def test_backend_of_a_device(backend):
    assert ops.backend() == backend
    assert ops.backend("CPU:0") == backend
    assert ops.backend("/job:worker/replica:0/task:1/device:CPU:0") == backend
    assert ops.same_bits_everywhere("CPU:0") == (backend == "custom")
    assert ops.backend("TPU:0") == "tensorflow"


def without_cuda(monkeypatch, module=None):
    """An installed library that was built without its kernels for GPUs."""
    status = library.Status(True, "", None, None, gpu_reason="built without a CUDA compiler")
    monkeypatch.setattr(library._installed, "_status", status)
    monkeypatch.setattr(library._installed, "_has_warned_about", set())


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_without_kernels_gets_stock_tensorflow_and_one_warning(gpu, monkeypatch):
    without_cuda(monkeypatch)
    monkeypatch.delenv(library.CHOICE_VARIABLE, raising=False)
    with pytest.warns(RuntimeWarning, match="built without a CUDA compiler"):
        assert ops.backend(gpu) == "tensorflow"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ops.backend(gpu) == "tensorflow"
        assert not ops.same_bits_everywhere(gpu)
    monkeypatch.setenv(library.CHOICE_VARIABLE, "custom")
    with pytest.raises(RuntimeError, match="built without a CUDA compiler"):
        ops.backend(gpu)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_with_kernels_uses_them(gpu, monkeypatch):
    monkeypatch.setattr(library._installed, "_status", library.Status(True, "", None, None))
    monkeypatch.setenv(library.CHOICE_VARIABLE, "custom")
    assert ops.backend(gpu) == "custom"
    assert not ops.same_bits_everywhere(gpu)


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_each_call_follows_the_device_of_its_tensor_or_scope(backend, monkeypatch):
    def compiled_ops(device_scope, device=None):
        @tf.function
        def run(rows):
            with tf.device(device_scope):
                return ops.segment_gram(rows, [0, 6], device=device)

        graph = run.get_concrete_function(tf.TensorSpec([2, 6], tf.float32)).graph
        return [op.type for op in graph.get_operations() if op.type.startswith("TfAdasum")]

    assert compiled_ops("CPU:0") == ["TfAdasumSegmentGram"]
    assert compiled_ops("GPU:0", device="CPU:0") == ["TfAdasumSegmentGram"]
    without_cuda(monkeypatch)
    monkeypatch.setenv(library.CHOICE_VARIABLE, "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compiled_ops("GPU:0") == []
        assert compiled_ops("CPU:0", device="GPU:0") == []


def test_the_error_of_a_gram_matrix_depends_on_where_it_was_computed(monkeypatch):
    def error_in(device_scope):
        errors = []

        @tf.function
        def run(gram):
            with tf.device(device_scope):
                errors.append(ops.gram_relative_error(tf.identity(gram)))
            return gram

        run.get_concrete_function(tf.TensorSpec([1, 2, 2], tf.float64))
        return errors.pop()

    monkeypatch.setattr(library._installed, "_status", library.Status(True, "", None, None))
    monkeypatch.setenv(library.CHOICE_VARIABLE, "custom")
    assert error_in("CPU:0") == 1e-14
    assert error_in("GPU:0") == 1e-6
    monkeypatch.setenv(library.CHOICE_VARIABLE, "tensorflow")
    assert error_in("GPU:0") == 1e-14


def test_reference_compiles_under_xla(monkeypatch):
    monkeypatch.setenv(library.CHOICE_VARIABLE, "tensorflow")
    a, b = random_rows(tf.float32, 2, 100)
    with tf.device("CPU:0"):
        eager = ops.pairwise_combine(a, b, [0, 30, 100])
        compiled = tf.function(jit_compile=True)(ops.pairwise_combine)(a, b, [0, 30, 100])
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)


# ---- loading -----------------------------------------------------------------------------------


def write_build_info(folder, version=tf.version.VERSION, git_version=tf.version.GIT_VERSION):
    info = {"tensorflow_version": version, "tensorflow_git_version": git_version}
    (folder / library.BUILD_INFO_NAME).write_text(json.dumps(info))


def no_library(folder):
    pass


def no_build_info(folder):
    (folder / library.LIBRARY_NAME).write_bytes(b"")


def not_a_library(folder):
    (folder / library.LIBRARY_NAME).write_bytes(b"not an ELF file")
    write_build_info(folder)


def other_version(folder):
    not_a_library(folder)
    write_build_info(folder, version="2.20.0")


def other_git_version(folder):
    not_a_library(folder)
    write_build_info(folder, git_version="v2.21.0-1-gabcdef")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (no_library, "was not built"),
        (no_build_info, "cannot be read"),
        (not_a_library, "cannot load"),
        (other_version, "built for TensorFlow 2.20.0"),
        (other_git_version, "gabcdef"),
    ],
)
def test_a_library_that_does_not_fit_is_not_used(prepare, reason, tmp_path, monkeypatch):
    prepare(tmp_path)
    broken = library.OpLibrary(tmp_path)
    monkeypatch.setenv(library.CHOICE_VARIABLE, "tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert broken.load() is None
        assert not broken.status().loaded
    assert reason in broken.status().reason
    assert broken.status().path == str(tmp_path / library.LIBRARY_NAME)

    monkeypatch.setenv(library.CHOICE_VARIABLE, "custom")
    with pytest.raises(RuntimeError, match=reason):
        broken.load()

    monkeypatch.delenv(library.CHOICE_VARIABLE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=broken.load) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert broken.load() is None
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert "pip install" in str(caught[0].message)
    assert "python -m tf_adasum.doctor" in str(caught[0].message)


def test_an_unknown_choice_is_refused(monkeypatch):
    monkeypatch.setenv(library.CHOICE_VARIABLE, "cuda")
    with pytest.raises(ValueError, match=r"auto, custom, tensorflow; Received: .*'cuda'"):
        ops.backend()


@pytest.mark.parametrize("backend", ["custom"], indirect=True)
def test_status_of_the_built_library(backend):
    status = library.status()
    assert status.loaded and status.reason is None
    assert status.built_for == f"{tf.version.VERSION} ({tf.version.GIT_VERSION})"
    assert Path(status.path).name == library.LIBRARY_NAME


def test_importing_does_not_load():
    code = "import tf_adasum.ops.library as l; print(l._installed._status)"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "None"
