"""Buckets: which gradients travel together, and that each comes back as it was."""

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.aggregation import buckets

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


def zeros(*sizes, dtype=tf.float32):
    return [tf.zeros([size], dtype) for size in sizes]


def planned(gradients, bucket_bytes=None):
    return [bucket.indices for bucket in buckets.plan(gradients, bucket_bytes)]


# ---- plan --------------------------------------------------------------------------------------


def test_the_last_gradients_come_first():
    assert planned(zeros(3, 1, 2)) == [(2, 1, 0)]


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (1, [(4,), (3,), (2,), (1,), (0,)]),
        (8, [(4,), (3, 2), (1,), (0,)]),
        (9, [(4, 3), (2, 1), (0,)]),
        (16, [(4, 3, 2), (1,), (0,)]),
        (1 << 30, [(4, 3, 2, 1, 0)]),
    ],
)
def test_a_bucket_is_closed_once_it_holds_bucket_bytes(bucket_bytes, expected):
    # Bytes of the gradients, from the last: 8, 4, 4, 4000, 40. The zeros between them do not count.
    assert planned(zeros(10, 1000, 1, 1, 2), bucket_bytes) == expected


@pytest.mark.parametrize("default", [None, 0])
def test_the_default_is_16_mib(default):
    quarter = 2**20  # elements: 4 MiB of float32
    assert planned(zeros(*[quarter] * 5), default) == [(4, 3, 2, 1), (0,)]
    assert planned(zeros(*[quarter] * 3, quarter - 1, quarter), default) == [(4, 3, 2, 1, 0)]


def test_a_bucket_holds_one_dtype():
    gradients = [tf.zeros([2], dtype) for dtype in DTYPES * 2]
    plan = buckets.plan(gradients)
    assert sorted(bucket.indices for bucket in plan) == [(4, 0), (5, 1), (6, 2), (7, 3)]
    for bucket in plan:
        assert {gradients[i].dtype for i in bucket.indices} == {bucket.dtype}


def test_bytes_are_counted_for_each_dtype():
    # Float16 and float64 take turns; 8 bytes are 4 and 1 of them.
    gradients = [tf.zeros([1], dtype) for dtype in (tf.float16, tf.float64) * 4]
    assert planned(gradients, 8) == [
        (7,), (5,), (3,), (1,), (6, 4, 2, 0),
    ]  # fmt: skip


def test_gradients_without_elements_are_in_no_bucket():
    assert planned([tf.zeros([0]), tf.zeros([2]), tf.zeros([3, 0]), tf.zeros([])]) == [(3, 1)]
    assert planned([tf.zeros([0])] * 3) == []
    assert planned([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_gradient_is_in_exactly_one_bucket(seed):
    random = np.random.default_rng(seed)
    gradients = [tf.zeros([random.integers(0, 50)], DTYPES[random.integers(4)]) for _ in range(60)]
    limit = int(random.integers(1, 500))
    plan = buckets.plan(gradients, limit)
    assert sorted(i for bucket in plan for i in bucket.indices) == [
        i for i, gradient in enumerate(gradients) if gradient.shape[0]
    ]
    for bucket in plan:
        assert list(bucket.indices) == sorted(bucket.indices, reverse=True)
        sizes = [gradients[i].shape[0] for i in bucket.indices]
        assert bucket.segments.dtype == np.int64
        aligned = 64 // bucket.dtype.size * np.ceil(np.multiply(sizes, bucket.dtype.size) / 64)
        assert bucket.segments.tolist() == [0, *np.cumsum(aligned)]
        assert sum(sizes[:-1]) * bucket.dtype.size < limit, "closed no later than necessary"
    for dtype in DTYPES:
        filled = [
            sum(shape.num_elements() for shape in b.shapes) * dtype.size
            for b in plan
            if b.dtype == dtype
        ]
        assert sum(size < limit for size in filled) <= 1, "only the last one is not full"


def test_offsets_beyond_32_bits():
    # A tensor of this size cannot be allocated here; its shape and dtype are all that is read.
    big = tf.TensorSpec([2**20, 2**12], tf.float16)
    bucket = buckets.Bucket.of([1, 0], [big, big])
    assert bucket.segments.tolist() == [0, 2**32, 2**33]


# ---- pack and unpack ---------------------------------------------------------------------------

SHAPES = [(3, 4), (), (1,), (0, 2), (2, 3, 5), (17,), (1, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bucket_bytes", [1, 50, None])
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("extra", [0, 5])
def test_what_is_packed_comes_back(dtype, bucket_bytes, in_graph, extra):
    random = np.random.default_rng(0)
    gradients = [
        tf.constant(np.asarray(random.standard_normal(shape)).astype(dtype.as_numpy_dtype))
        for shape in SHAPES
    ]
    plan = buckets.plan(gradients, bucket_bytes)

    def there_and_back(gradients):
        buffers = [bucket.pack(gradients, bucket.size + extra) for bucket in plan]
        return buffers, [dict(b.unpack(buffer)) for b, buffer in zip(plan, buffers, strict=True)]

    buffers, pieces = (tf.function(there_and_back) if in_graph else there_and_back)(gradients)
    returned = {}
    for bucket, buffer, own in zip(plan, buffers, pieces, strict=True):
        assert buffer.dtype == dtype and buffer.shape == [bucket.segments[-1] + extra]
        expected = np.zeros(buffer.shape[0], dtype.as_numpy_dtype)
        for index, start in zip(bucket.indices, bucket.segments, strict=False):
            flat = gradients[index].numpy().ravel()
            expected[start : start + flat.size] = flat
        assert buffer.numpy().tobytes() == expected.tobytes(), "in the bucket's order, and zeros"
        returned.update(own)
    assert sorted(returned) == [0, 1, 2, 4, 5, 6]
    for index, gradient in returned.items():
        assert gradient.shape == SHAPES[index] and gradient.dtype == dtype
        assert gradient.numpy().tobytes() == gradients[index].numpy().tobytes()


def test_unpacked_gradients_have_static_shapes():
    gradients = [tf.zeros(shape) for shape in SHAPES]
    (bucket,) = buckets.plan(gradients)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def unpack(buffer):
        return dict(bucket.unpack(buffer))

    shapes = unpack.get_concrete_function().structured_outputs
    assert {i: tuple(gradient.shape) for i, gradient in shapes.items()} == {
        i: shape for i, shape in enumerate(SHAPES) if 0 not in shape
    }


# ---- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [tf.int32, tf.complex128, tf.bool])
@pytest.mark.parametrize("size", [0, 3])
def test_other_dtypes_are_refused_also_without_elements(wrong, size):
    gradients = [tf.zeros([1]), tf.cast(tf.zeros([size]), wrong)]
    with pytest.raises(ValueError, match=f"gradient 1 with dtype {wrong.name}, shape"):
        buckets.plan(gradients)


@pytest.mark.parametrize("shape", [None, [None, 3], [3, None]])
def test_unknown_shapes_are_refused(shape):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
    def step(gradient):
        buckets.plan([tf.zeros([2]), gradient])

    with pytest.raises(ValueError, match=r"tf\.ensure_shape.*Received: gradient 1 with shape"):
        step.get_concrete_function()


def test_unpacking_copies_nothing_that_is_a_multiple_of_64_bytes():
    def address(tensor):
        return np.asarray(memoryview(tensor)).__array_interface__["data"][0]

    with tf.device("CPU:0"):
        gradients = [tf.ones([3, 16]), tf.ones([1024]), tf.ones([64, 5])]
        (bucket,) = buckets.plan(gradients)
        buffer = tf.identity(bucket.pack(gradients))
        unpacked = dict(bucket.unpack(buffer))
    offsets = [address(unpacked[index]) - address(buffer) for index in bucket.indices]
    assert offsets == [4 * int(start) for start in bucket.segments[:-1]]
