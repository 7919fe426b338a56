"""Buckets: variables packed into flat buffers of one dtype, with a table of their offsets.

    gradients   [4, 4]     [5]       [4, 8]            one per variable
    segments    0        16        32        64        offsets in the buffer
    bucket      ┌─────────┬───┬─────┬─────────┐
                │   g_0   │g_1│0 … 0│   g_2   │  [n]   one flat buffer
                └─────────┴───┴─────┴─────────┘

Each segment is padded with zeros to a multiple of 64 bytes, because TensorFlow does not copy
aligned slices of a buffer. The zeros change no inner product.

Shape legend: S segments (the variables of one bucket), n elements of the bucket.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tf_adasum import ops

# Large enough to amortize the latency of a collective. In larger models, small enough that the
# exchange of the last layers' gradients starts while the gradients of the first layers are still
# being computed.
DEFAULT_BUCKET_BYTES = 16 * 2**20

# Between hosts, the first bucket is closed earlier, so that sending starts earlier. All buckets of
# this size would need four times as many messages.
FIRST_BUCKET_BYTES = 4 * 2**20

# Between hosts, smaller gradients come after all others. With a single thread, TensorFlow can
# compute the gradient of a bias of the last layer at the end of backpropagation, and then the large
# gradients in its bucket would wait for it.
SMALL_GRADIENT_BYTES = 64 * 2**10

# A large bucket is sent in pieces of about this size, because memory blocks of this size are reused
# from step to step. The operating system has to clear larger blocks in every step.
PIECE_BYTES = 16 * 2**20

# TensorFlow's own alignment of tensors: a slice with this alignment shares the buffer's memory.
ALIGNED_BYTES = 64

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def elements_aligned(dtype: tf.DType) -> int:
    """Return the number of elements between two aligned addresses."""
    return max(1, ALIGNED_BYTES // dtype.size)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The table of the gradients that are packed into one flat buffer.

    Attributes:
        indices: the positions of these gradients in the list of all gradients.
        shapes: the shapes of these gradients.
        dtype: the dtype of all these gradients.
        segments: int64 ``[S+1]``: gradient s starts at ``segments[s]``, and zeros follow it up to
            ``segments[s+1]``.
    """

    indices: tuple[int, ...]
    shapes: tuple[tf.TensorShape, ...]
    dtype: tf.DType
    segments: np.ndarray

    @classmethod
    def from_gradients(cls, indices: Sequence[int], gradients: Sequence[Gradient]) -> "Bucket":
        """Return the bucket of ``gradients[i] for i in indices``."""
        shapes = tuple(gradients[i].shape for i in indices)
        dtype = gradients[indices[0]].dtype
        alignment = elements_aligned(dtype)
        sizes = [-(-shape.num_elements() // alignment) * alignment for shape in shapes]
        segments = np.cumsum([0, *sizes], dtype=np.int64)
        return cls(tuple(indices), shapes, dtype, segments)

    @property
    def size(self) -> int:
        """n, the number of elements of the bucket, including the zeros."""
        return int(self.segments[-1])

    def pack(self, gradients: Sequence[Gradient], size: int | None = None) -> tf.Tensor:
        """Copy this bucket's gradients into a buffer ``[size]``, by default ``[n]``."""
        ends = np.append(self.segments[1:-1], size or self.size)
        pieces = []
        for index, start, end in zip(self.indices, self.segments, ends, strict=False):
            gradient = tf.reshape(gradients[index], [-1])
            gap = end - start - gradient.shape[0]
            pieces += [gradient, tf.zeros([gap], self.dtype)] if gap else [gradient]
        return tf.concat(pieces, axis=0)

    def unpack(self, buffer: tf.Tensor) -> list[tuple[int, tf.Tensor]]:
        """Return ``(index, gradient)`` for each gradient in a buffer of n or more elements."""
        return [
            (index, tf.reshape(tf.slice(buffer, [start], [shape.num_elements()]), shape))
            for index, shape, start in zip(self.indices, self.shapes, self.segments, strict=False)
        ]


def assign(
    gradients: Sequence[Gradient],
    bucket_bytes: int | None = None,
    spans_hosts: bool = False,
    is_last_early: bool = False,
) -> list[Bucket]:
    """Distribute gradients over buckets.

    The last gradients come first, because backpropagation computes them first. A bucket holds
    gradients of one dtype and is closed once it holds `bucket_bytes` or more; a gradient is never
    divided between two buckets. Sparse gradients and gradients without elements are in no bucket.

    If replicas are on several hosts, gradients below 64 KiB come after all others, and the first
    bucket is closed once it holds 4 MiB, so that sending starts early.

    Args:
        gradients: list of dense tensors of known shape, and of `tf.IndexedSlices`.
        bucket_bytes: bytes after which a bucket is closed. Defaults to 16 MiB; 0 means the default.
        spans_hosts: whether replicas are on several hosts. Defaults to `False`.
        is_last_early: whether the last gradient is in the first bucket, even if it is small.
            Defaults to `False`.

    Returns:
        A list of `Bucket`.

    Raises:
        ValueError: if a gradient has an unknown shape, or its dtype is not a floating-point type.
    """
    bytes_of: dict[int, int] = {}
    for index, gradient in reversed(list(enumerate(gradients))):
        _check(gradient, index)
        if not isinstance(gradient, tf.IndexedSlices) and gradient.shape.num_elements():
            bytes_of[index] = gradient.shape.num_elements() * gradient.dtype.size
    order = list(bytes_of)
    if spans_hosts:
        early = len(gradients) - 1 if is_last_early else None
        order.sort(key=lambda i: i != early and bytes_of[i] < SMALL_GRADIENT_BYTES)
    limit = bucket_bytes or DEFAULT_BUCKET_BYTES
    buckets: list[Bucket] = []
    open_indices: dict[tf.DType, list[int]] = {}
    open_bytes: dict[tf.DType, int] = {}
    for index in order:
        dtype = gradients[index].dtype
        open_indices.setdefault(dtype, []).append(index)
        open_bytes[dtype] = open_bytes.get(dtype, 0) + bytes_of[index]
        is_early = spans_hosts and not buckets
        if open_bytes[dtype] >= (min(limit, FIRST_BUCKET_BYTES) if is_early else limit):
            buckets.append(Bucket.from_gradients(open_indices.pop(dtype), gradients))
            del open_bytes[dtype]
    return buckets + [
        Bucket.from_gradients(indices, gradients) for indices in open_indices.values()
    ]


def piece_width(bucket: Bucket, pieces: int, multiple: int) -> int:
    """Return the number of elements of a piece.

    Args:
        bucket: the bucket.
        pieces: the number of pieces into which the bucket is cut.
        multiple: the number of elements is rounded up to a multiple of this number.
    """
    return -(-bucket.size // (pieces * multiple)) * multiple


def _check(gradient: Gradient, index: int) -> None:
    if gradient.dtype not in ops.DTYPES:
        expected = ", ".join(dtype.name for dtype in ops.DTYPES)
        raise ValueError(
            f"Only gradients of the dtypes {expected} can be aggregated. "
            f"Received: gradient {index} with dtype {gradient.dtype.name}, shape {gradient.shape}"
        )
    shape = gradient.shape
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.values.shape[1:]  # the number of rows may change from step to step
    if not shape.is_fully_defined():
        raise ValueError(
            "The shape of every gradient must be known when the training step is traced. Set it "
            "with tf.ensure_shape(gradient, variable.shape). "
            f"Received: gradient {index} with shape {shape}"
        )
