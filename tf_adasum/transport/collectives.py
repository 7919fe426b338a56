"""The collectives of a replica over UCX, which return the same bits as TensorFlow's collectives.

Each run of a collective has its own key. All workers count keys in the same way. UCX does not store
keys, so new keys need no memory.

Shape legend: R members of a group, W elements.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.transport import library


class UcxTransport:
    """Creates the groups of this worker's replicas, which exchange gradients over a mesh.

    Args:
        mesh: the `Mesh`.
        devices: the number of devices of each worker.
        first_replica: the id of this worker's first replica.

    Attributes:
        fuses: whether a bucket that is combined in one level is sent without packing. True, except
            in comparisons.
    """

    def __init__(self, mesh: library.Mesh, devices: int, first_replica: int):
        self._mesh, self._devices, self._first_replica = mesh, devices, first_replica
        self._keys = [tensorflow_compat.CallKeys() for _ in range(devices)]
        self.fuses = True

    def group(self, local: int, stride: int, radix: int) -> CollectiveGroup:
        """Return a local replica's group: `radix` replicas whose ids are `stride` apart.

        Args:
            local: the number of the local replica.
            stride: the difference between the ids of neighbours in the group.
            radix: the number of replicas in the group.
        """
        return self._group(local, stride, radix, self._keys[local].next)

    def group_of_workers(self, workers: int) -> CollectiveGroup:
        """Return the group of the first replicas of all workers.

        Args:
            workers: the number of workers.
        """

        # Count for all local replicas, although only the first one takes part. In other groups, all
        # replicas must have counted the same number of collectives.
        def next_key() -> Any:
            first, *_ = [keys.next() for keys in self._keys]
            return first

        return self._group(0, self._devices, workers, next_key)

    def _group(self, local: Any, stride: int, radix: int, next_key: Any) -> Any:
        replica = self._first_replica + local
        member = replica // stride % radix
        first = replica - member * stride
        members = [first + stride * number for number in range(radix)]
        own = UcxCollectives(self._mesh, members, member, self._devices, next_key)
        return CollectiveGroup(own, np.arange(radix), member, own if self.fuses else None)


@dataclasses.dataclass(eq=False)
class UcxCollectives:
    """The collectives of one replica, see `aggregation.groups.Collectives`.

    `scatter_gram` and `combine_gather` send the gradients of a bucket without packing them, for
    `aggregation.fused`. Their arguments `segments`, `width` and `computes_gram` are the same on all
    members: the offset of each gradient in the bucket, the number of elements of a piece, and
    whether Gram matrices are needed.

    Attributes:
        mesh: the `Mesh`.
        members: the ids of the group's replicas, in rank order.
        member: the rank of this replica in the group.
        devices: the number of devices of each worker.
        next_key: function that returns the key of the next collective, as `CallKeys.next` does.
    """

    mesh: library.Mesh
    members: list[int]
    member: int
    devices: int
    next_key: Callable[[], tf.Tensor]

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[R, W]`` to rank i; return ``[R, W]``, whose row i comes from rank i."""
        return library.opened().ops.tf_adasum_ucx_all_to_all(shards=shards, **self._arguments())

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of the members' values. Each element is added on one member."""
        members, size = len(self.members), tf.size(value)
        padded = tf.pad(tf.reshape(value, [-1]), [[0, -size % members]])
        shards = self.all_to_all(tf.reshape(padded, [members, -1]))
        summed = self.all_gather(tf.reduce_sum(shards, axis=0))
        return tf.reshape(summed[:size], tf.shape(value))

    def all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Concatenate the members' values along the first axis, in the order of the ranks."""
        return library.opened().ops.tf_adasum_ucx_all_gather(value=value, **self._arguments())

    def scatter_gram(
        self, gradients: Sequence[tf.Tensor], segments: np.ndarray, width: int, computes_gram: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Send every member its shards of the gradients, and receive this member's shards.

        Returns:
            The Gram matrices of this member's shards (zeros if `computes_gram` is False), and
            these shards of the other members' gradients.
        """
        return library.opened().ops.tf_adasum_ucx_scatter_gram(
            gradients=gradients,
            segments=segments.tolist(),
            width=width,
            computes_gram=computes_gram,
            **self._arguments(),
        )

    def combine_gather(
        self,
        gradients: Sequence[tf.Tensor],
        received: tf.Tensor,
        coefficients_SR: tf.Tensor,
        segments: np.ndarray,
        width: int,
    ) -> list[tf.Tensor]:
        """Combine this member's shards; return the combined gradients from all members' shards."""
        return library.opened().ops.tf_adasum_ucx_combine_gather(
            gradients=gradients,
            received=received,
            coefficients=coefficients_SR,
            segments=segments.tolist(),
            width=width,
            **self._arguments(),
        )

    def _arguments(self) -> dict[str, Any]:
        return {
            "key": self.next_key(),
            "mesh": self.mesh.number,
            "channel": self.mesh.channel,
            "members": self.members,
            "member": self.member,
            "devices": self.devices,
        }
