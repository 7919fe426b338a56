"""Runs all-to-all, all-reduce and all-gather of TensorFlow's runtime for one replica."""

import tensorflow as tf

from tf_adasum.compat.tensorflow import dtype_encoding
from tf_adasum.compat.tensorflow.collective_keys import ReusingLauncher


class ReplicaCollectives:
    """Runs three collectives for one replica, together with the other replicas of a group.

    TensorFlow has no public all-to-all, and its public collectives do not accept a group of some of
    the replicas.

    Args:
        launcher: the replica's launcher, with the group, keys and ordering token. Without the
            token, several devices in one graph wait for each other forever.
        options: `CommunicationOptions`: timeout in seconds and implementation.
    """

    def __init__(
        self, launcher: ReusingLauncher, options: tf.distribute.experimental.CommunicationOptions
    ):
        self._launcher = launcher
        self._options = options

    @property
    def device(self) -> str:
        """The replica's device."""
        return self._launcher._device

    def all_to_all(self, shards: tf.Tensor) -> tf.Tensor:
        """Send row i of ``[ranks, k]`` to rank i. Return ``[ranks, k]`` with row i from rank i."""
        return tf.raw_ops.CollectiveAllToAllV2(input=shards, **self._arguments("to all", shards))

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of `value` over the group's replicas, with the same bits on each."""
        return tf.raw_ops.CollectiveReduceV2(
            input=value, merge_op="Add", final_op="Id", **self._arguments("reduce", value)
        )

    def all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Concatenate the replicas' `value` along the first axis, in the order of the ranks."""
        encoded = dtype_encoding.encoded(value)
        arguments = self._arguments("gather", encoded)
        gathered = tf.raw_ops.CollectiveGatherV2(input=encoded, **arguments)
        return dtype_encoding.decoded(gathered, value.dtype)

    def _arguments(self, kind, value):
        launcher = self._launcher
        token = launcher._get_ordering_token()
        with launcher.key_of(kind, value):
            instance_key = launcher._next_instance_key()
        return {
            "group_size": launcher._group_size,
            "group_key": launcher._group_key,
            "instance_key": instance_key,
            "ordering_token": [] if token is None else [token],
            "communication_hint": self._options.implementation.value,
            "timeout_seconds": float(self._options.timeout_seconds or 0),
            "is_stateless": False,
        }


def gather_on_each(
    tensors: list[tf.Tensor], collectives: list[ReplicaCollectives]
) -> list[tf.Tensor]:
    """Gather a tensor from each replica. Return one ``[replicas, …]`` for each local device."""
    gathered = []
    for tensor, own in zip(tensors, collectives, strict=True):
        with tf.device(own.device):
            gathered.append(own.all_gather(tensor[None]))
    return gathered
