"""The three operations as Python functions: arguments, and the choice of the implementation."""

import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from support.fuzzing import fuzz_settings

import tf_adasum.ops as ops
from tf_adasum.environment_variables import OPS
from tf_adasum.ops import library, self_test

# ---- arguments ---------------------------------------------------------------------------------

ROWS = np.ones([2, 6], np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.segment_gram(ROWS.astype(int), [0, 6]), "rows.dtype=int64"),
        (lambda: ops.segment_gram(ROWS[0], [0, 6]), r"rows.shape=\(6,\)"),
        (lambda: ops.segment_gram(ROWS[:0], [0, 6]), r"rows.shape=\(0, 6\)"),
        (lambda: ops.segment_gram(ROWS, []), r"segments.shape=\(0,\)"),
        (lambda: ops.segment_gram(ROWS, [[0, 6]]), r"segments.shape=\(1, 2\)"),
        (lambda: ops.segment_gram(ROWS, tf.constant([0, 6])), "segments.dtype=int32"),
        (lambda: ops.segment_gram(ROWS, [1, 6]), r"segments=\[1 6\]"),
        (lambda: ops.segment_gram(ROWS, [0, 5]), r"end at 6.*segments=\[0 5\]"),
        (lambda: ops.segment_gram(ROWS, [0, 4, 3, 6]), r"segments=\[0 4 3 6\]"),
        (lambda: ops.segment_weighted_sum(ROWS, [[1.0]], [0, 6]), r"coefficients.shape=\(1, 1\)"),
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
    for call in (
        lambda: gram(ROWS[0]),
        lambda: gram(ROWS[:0]),
        lambda: weighted_sum(ROWS, tf.ones([1, 3])),
        lambda: weighted_sum(ROWS, tf.ones([2, 2])),
        lambda: pairwise(ROWS, ROWS[:1]),
    ):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"expected|compatible|element_shape"
        ):
            call()


AT_RUN_TIME = {
    "gram": ops.segment_gram,
    "pairwise": lambda rows, segments: ops.pairwise_combine(rows[0], rows[1], segments),
    "weighted sum": lambda rows, segments: ops.segment_weighted_sum(
        rows, tf.ones([tf.size(segments) - 1, 2]), segments
    ),
}


@pytest.fixture(params=AT_RUN_TIME.values(), ids=AT_RUN_TIME)
def compiled(backend, request):
    """An operation whose segments are known at run time only."""
    signature = [tf.TensorSpec([2, None]), tf.TensorSpec([None], tf.int64)]
    return tf.function(request.param, input_signature=signature, autograph=False)


@fuzz_settings(80)
@hypothesis.given(
    segments=st.lists(
        st.one_of(st.integers(-3, 9), st.sampled_from([2**31, 2**62, -(2**63)])),
        max_size=5,
    ),
    size=st.integers(0, 5),
)
@hypothesis.example([0, 2, 6], 6)
@hypothesis.example([1, 6], 6)
@hypothesis.example([0, 5], 6)
@hypothesis.example([0, 7], 6)
@hypothesis.example([0, 4, 3, 6], 6)
@hypothesis.example([0, -1, 6], 6)
@hypothesis.example([], 0)
def test_segments_that_are_known_at_run_time_only(compiled, segments, size):
    """The op itself has to refuse offsets that would lead out of the memory."""
    is_table = segments[:1] == [0] and segments[-1] == size and segments == sorted(segments)
    try:
        result = compiled(tf.ones([2, size]), tf.constant(segments, tf.int64))
        assert is_table and np.isfinite(result).all()
    except (ValueError, tf.errors.InvalidArgumentError):
        assert not is_table


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
