"""Runs all-to-all, all-reduce and all-gather of TensorFlow's runtime for one replica."""

import tensorflow as tf

from tf_adasum.compat.tensorflow.collective_keys import ReusingLauncher


class ReplicaCollectives:
    """Runs three collectives for one replica, together with the other replicas of a group.

    TensorFlow's launchers have no all-to-all, so it is created here as they create an all-reduce.

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
        launcher, options = self._launcher, self._options
        token = launcher._get_ordering_token()
        with launcher.key_of("to all", shards):
            instance_key = launcher._next_instance_key()
        return tf.raw_ops.CollectiveAllToAllV2(
            input=shards,
            group_size=launcher._group_size,
            group_key=launcher._group_key,
            instance_key=instance_key,
            ordering_token=[] if token is None else [token],
            communication_hint=options.implementation.value.lower(),
            timeout_seconds=float(options.timeout_seconds or 0),
            is_stateless=False,
        )

    def all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Return the sum of `value` over the group's replicas, with the same bits on each."""
        return self._launcher.all_reduce(value, options=self._options)

    def all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Concatenate the replicas' `value` along the first axis, in the order of the ranks."""
        return self._launcher._all_gather(value, self._options)


def gather_on_each(
    tensors: list[tf.Tensor], collectives: list[ReplicaCollectives]
) -> list[tf.Tensor]:
    """Gather a tensor from each replica. Return one ``[replicas, …]`` for each local device."""
    gathered = []
    for tensor, own in zip(tensors, collectives, strict=True):
        with tf.device(own.device):
            gathered.append(own.all_gather(tensor[None]))
    return gathered
