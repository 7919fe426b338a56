"""Buckets: which gradients are packed together. test_levels.py unpacks them."""

import numpy as np
import pytest
import tensorflow as tf
from support.scheme_oracle import DTYPES

from tf_adasum.aggregation import buckets


def of_sizes(*sizes, dtypes=(tf.float32,)):
    """Gradients of these sizes, with the dtypes in turn; only shapes and dtypes are read."""
    return [tf.TensorSpec([size], dtypes[i % len(dtypes)]) for i, size in enumerate(sizes)]


MIB = 2**18  # elements of float32


@pytest.mark.parametrize(
    ("gradients", "bucket_bytes", "expected"),
    [
        ([], None, []),
        (of_sizes(3, 1, 2), None, [(2, 1, 0)]),
        # Bytes of the gradients, from the last: 8, 4, 4, 4000, 40. The padding does not count.
        (of_sizes(10, 1000, 1, 1, 2), 1, [(4,), (3,), (2,), (1,), (0,)]),
        (of_sizes(10, 1000, 1, 1, 2), 8, [(4,), (3, 2), (1,), (0,)]),
        (of_sizes(10, 1000, 1, 1, 2), 9, [(4, 3), (2, 1), (0,)]),
        (of_sizes(10, 1000, 1, 1, 2), 16, [(4, 3, 2), (1,), (0,)]),
        # The default is 16 MiB.
        (of_sizes(*[4 * MIB] * 5), None, [(4, 3, 2, 1), (0,)]),
        (of_sizes(*[4 * MIB] * 5), 0, [(4, 3, 2, 1), (0,)]),
        (of_sizes(*[4 * MIB] * 3, 4 * MIB - 1, 4 * MIB), None, [(4, 3, 2, 1, 0)]),
        # Each dtype has buckets of its own, whose bytes are counted separately.
        (of_sizes(*[2] * 8, dtypes=DTYPES), None, [(7, 3), (6, 2), (5, 1), (4, 0)]),
        (
            of_sizes(*[1] * 8, dtypes=(tf.float16, tf.float64)),
            8,
            [(7,), (5,), (3,), (1,), (6, 4, 2, 0)],
        ),
        # Gradients without elements are in no bucket.
        ([*of_sizes(0, 2), tf.zeros([3, 0]), tf.zeros([])], None, [(3, 1)]),
    ],
)
def test_a_bucket_is_closed_once_it_holds_bucket_bytes(gradients, bucket_bytes, expected):
    assert [bucket.indices for bucket in buckets.assign(gradients, bucket_bytes)] == expected


@pytest.mark.parametrize(
    ("gradients", "bucket_bytes", "expected"),
    [
        ([], None, []),
        # The first bucket is closed at 4 MiB, and the others at 16 MiB.
        (of_sizes(*[2 * MIB] * 12), None, [(11, 10), (9, 8, 7, 6, 5, 4, 3, 2), (1, 0)]),
        (of_sizes(*[2 * MIB] * 4), 2**21, [(3,), (2,), (1,), (0,)]),
        # Gradients below 64 KiB come after all others.
        (of_sizes(2**14 - 1, 2**14, 4 * MIB, 10), None, [(2,), (1, 3, 0)]),
        (of_sizes(10, 2**14, 10, MIB, 10), None, [(3, 1, 4, 2, 0)]),
        (of_sizes(2**13, 2**13, dtypes=(tf.float32, tf.float64)), None, [(1,), (0,)]),
    ],
)
def test_between_hosts_sending_starts_early(gradients, bucket_bytes, expected):
    plan = buckets.assign(gradients, bucket_bytes, spans_hosts=True)
    assert [bucket.indices for bucket in plan] == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_segments_are_aligned_to_64_bytes(dtype):
    sizes = np.random.default_rng(0).integers(1, 50, 60)
    (bucket,) = buckets.assign(of_sizes(*sizes, dtypes=(dtype,)))
    aligned = 64 // dtype.size * np.ceil(sizes[::-1] * dtype.size / 64)
    assert bucket.segments.tolist() == [0, *np.cumsum(aligned)]


def test_offsets_beyond_32_bits():
    # A tensor of this size cannot be allocated here; its shape and dtype are all that is read.
    big = tf.TensorSpec([2**20, 2**12], tf.float16)
    bucket = buckets.Bucket.from_gradients([1, 0], [big, big])
    assert bucket.segments.tolist() == [0, 2**32, 2**33] and bucket.segments.dtype == np.int64


# ---- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [None, [None, 3], [3, None]])
def test_unknown_shapes_are_refused(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
    def step(gradient):
        buckets.assign([tf.zeros([2]), gradient])

    with pytest.raises(ValueError, match=r"tf\.ensure_shape.*Received: gradient 1 with shape"):
        step.get_concrete_function()
