"""The three operations as Python functions: arguments, and the choice of the implementation."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tf_adasum.ops as ops
from tf_adasum.environment_variables import OPS
from tf_adasum.ops import library, self_test

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


def test_wrong_shapes_are_refused_at_run_time(backend):
    unknown = tf.TensorSpec(None, tf.float32)
    gram = tf.function(lambda rows: ops.segment_gram(rows, [0, 6]), input_signature=[unknown])
    weighted_sum = tf.function(
        lambda rows, c: ops.segment_weighted_sum(rows, c, [0, 6]), input_signature=[unknown] * 2
    )
    pairwise = tf.function(ops.pairwise_combine, input_signature=[unknown] * 2)
    assert pairwise(ROWS, ROWS).shape == (2, 6)
    some_segments, no_offsets = tf.TensorSpec([None], tf.int64), tf.constant([], tf.int64)
    gram_of = tf.function(ops.segment_gram, input_signature=[unknown, some_segments])
    pairwise_of = tf.function(
        ops.pairwise_combine, input_signature=[unknown, unknown, some_segments]
    )
    for call in (
        lambda: gram(ROWS[0]),
        lambda: gram(ROWS[:0]),
        lambda: weighted_sum(ROWS, tf.ones([1, 3])),
        lambda: weighted_sum(ROWS, tf.ones([2, 2])),
        lambda: pairwise(ROWS, ROWS[:1]),
        lambda: gram_of(ROWS, no_offsets),
        lambda: gram_of(ROWS, tf.constant([0, 4, 2, 6], tf.int64)),
        lambda: pairwise_of(ROWS, ROWS, no_offsets),
    ):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"expected|compatible|element_shape"
        ):
            call()


# ---- choice of the backend ---------------------------------------------------------------------


def test_backend_of_a_device(backend):
    for device in (None, "CPU:0", "/job:worker/replica:0/task:1/device:CPU:0"):
        assert ops.backend(device) == backend
    assert ops.same_bits_everywhere("CPU:0") == (backend == "custom")
    assert ops.backend("TPU:0") == "tensorflow"


def pretend(monkeypatch, gpu_reason):
    """An installed library that is loaded, with or without its kernels for GPUs."""
    status = library.Status(True, "", None, None, gpu_reason=gpu_reason)
    monkeypatch.setattr(library._installed, "_status", status)
    monkeypatch.setattr(library._installed, "_has_warned_about", set())


@pytest.mark.parametrize(
    "gpu", ["GPU", "GPU:1", "/device:GPU:0", "/job:worker/replica:0/task:1/device:GPU:0"]
)
def test_the_backend_of_a_gpu_depends_on_its_kernels(gpu, monkeypatch):
    pretend(monkeypatch, "built without a CUDA compiler")
    monkeypatch.delenv(OPS, raising=False)
    with pytest.warns(RuntimeWarning, match="built without a CUDA compiler"):
        assert ops.backend(gpu) == "tensorflow"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there is only one warning
        assert ops.backend(gpu) == "tensorflow"
        assert not ops.same_bits_everywhere(gpu)
    monkeypatch.setenv(OPS, "custom")
    with pytest.raises(RuntimeError, match="built without a CUDA compiler"):
        ops.backend(gpu)
    pretend(monkeypatch, None)
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
    pretend(monkeypatch, "built without a CUDA compiler")
    monkeypatch.setenv(OPS, "auto")
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

    pretend(monkeypatch, None)
    monkeypatch.setenv(OPS, "custom")
    assert error_in("CPU:0") == 1e-14
    assert error_in("GPU:0") == 1e-5
    monkeypatch.setenv(OPS, "tensorflow")
    assert error_in("GPU:0") == 1e-14


def test_reference_compiles_under_xla(monkeypatch):
    monkeypatch.setenv(OPS, "tensorflow")
    a, b = np.random.default_rng(0).standard_normal([2, 100], dtype=np.float32)
    with tf.device("CPU:0"):
        eager = ops.pairwise_combine(a, b, [0, 30, 100])
        compiled = tf.function(jit_compile=True)(ops.pairwise_combine)(a, b, [0, 30, 100])
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)


# ---- the self-test -----------------------------------------------------------------------------


def test_the_self_test_finds_nothing_wrong(backend):
    assert self_test.failures("CPU:0") == []


@pytest.mark.parametrize("operation", ["segment_gram", "segment_weighted_sum", "pairwise_combine"])
@pytest.mark.parametrize("wrong", [lambda x: x + tf.cast(0.1, x.dtype), lambda x: x * np.nan])
def test_the_self_test_names_a_wrong_operation(operation, wrong, monkeypatch):
    right = getattr(ops, operation)
    monkeypatch.setattr(ops, operation, lambda *arguments: wrong(right(*arguments)))
    found = self_test.failures("CPU:0")
    assert [line.split()[0] for line in found] == [operation] * 4
    assert "of float16 is wrong" in found[2]
