"""Lets all replicas together skip a step, or stop, if gradients are not finite.

Shape legend: N is the number of replicas.
"""

import contextlib
import functools
import re
import warnings
import weakref
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation.sparse import values_of
from tf_adasum.arguments import check
from tf_adasum.compat.tensorflow import replica
from tf_adasum.errors import see

ACTIONS = ("propagate", "skip", "raise")

# The beginning and the end of the message that the user sees.
MESSAGE = "Gradients are not finite (on_nonfinite: raise)."  # no quotes: TensorFlow escapes them
MESSAGE_END = f"No replica did this step. {see('TFA-509')}"


def validated_action(action):
    """Return the argument `on_nonfinite` of a strategy.

    Raises:
        ValueError: if the argument is not one of `ACTIONS`.
    """
    expected = "must be 'propagate' (a NaN or Inf reaches the weights), 'skip' (all replicas skip "
    check("on_nonfinite", action, action in ACTIONS, f"{expected}such a step) or 'raise'")
    return action


class NonFinite:
    """Handles steps in which the gradients of a replica are not all finite.

    Args:
        strategy: the strategy; all its workers have to create this object.
        action: one of `ACTIONS`.
    """

    def __init__(self, strategy, action):
        self.action = action
        self._strategy = weakref.proxy(strategy)
        self._has_warned = False
        self._checked: set[int] = set()  # ids of replicas, while a step is traced
        self._skipped: Any = None
        if action == "skip":
            with strategy.scope():
                self._skipped = tf.Variable(
                    tf.constant(0, tf.int64),
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                )

    @property
    def skipped_steps(self):
        """How many steps were skipped, as an int."""
        return 0 if self._skipped is None else int(self._skipped.numpy())

    @property
    def is_disabled(self):
        """Whether to skip the check, as it is not requested or an outer optimizer has made it."""
        return self.action == "propagate" or replica() in self._checked

    @contextlib.contextmanager
    def already_checked(self):
        """Let nested optimizers skip the check, because the outer optimizer has already made it."""
        self._checked.add(replica())
        try:
            yield
        finally:
            self._checked.discard(replica())

    def find(self, gradients):
        """Return which gradients of each replica are not finite; every replica calls this method.

        Args:
            gradients: this replica's dense and sparse gradients, without None.

        Returns:
            float32 ``[V]``, the same on all replicas: for each virtual replica, the number of its
            first gradient that is not finite, counted from 1, or 0 if all its gradients are finite.
        """
        first, step = self.first(gradients), self._strategy._virtual_replicas.step
        own_k = step.noted("not finite", first) if step else first[None]
        context = tf.distribute.get_replica_context()
        own = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync)
        return context.all_reduce("SUM", tf.reshape(own[:, None] * own_k, [-1]))

    def first(self, gradients):
        """Return the number of the first gradient that is not finite, as `find` does, float32."""
        numbers = map(values_of, gradients)
        are_finite = tf.stack([tf.reduce_all(tf.math.is_finite(each)) for each in numbers])
        first = 1 + tf.argmin(tf.cast(are_finite, tf.int32))
        return tf.where(tf.reduce_all(are_finite), 0.0, tf.cast(first, tf.float32))

    def skip_or_raise(self, found_N, paths):
        """Count a skipped step, or raise an error; every replica calls this instead of the step.

        Args:
            found_N: the result of `find`.
            paths: the paths of the variables that the gradients belong to.

        Raises:
            tf.errors.InvalidArgumentError: when the step runs, with the action ``"raise"``.
        """
        if self.action == "skip":
            self._skipped.assign_add(1)
        else:
            # tf.debugging.Assert would add a branch, but this code already runs in a branch.
            message = self._message(found_N, paths)
            tf.raw_ops.Assert(condition=False, data=[message], summarize=1)

    def _message(self, found_N, paths):
        replicas = tf.where(found_N > 0)[:, 0]
        names = tf.gather(tf.constant(paths), tf.cast(tf.gather(found_N, replicas), tf.int32) - 1)
        per_device = self._strategy._virtual_replicas.per_device
        devices = len(self._strategy.extended.worker_devices)
        replicas, micro_batches = replicas // per_device, replicas % per_device
        worker, replica, micro_batch = (
            tf.strings.as_string(numbers)
            for numbers in (replicas // devices, replicas % devices, micro_batches)
        )
        where = ["worker ", worker, ", its replica ", replica]
        where += [", micro-batch ", micro_batch] if per_device > 1 else []
        each = tf.strings.join([*where, ": ", names])
        received = tf.strings.reduce_join(each, separator="; ")
        return tf.strings.join([f"{MESSAGE} Received on ", received, f". {MESSAGE_END}"])

    def warn_once(self):
        """Warn once if steps were skipped."""
        if self._has_warned or not self.skipped_steps:
            return
        self._has_warned = True
        warnings.warn(
            f"{self.skipped_steps} steps were skipped, because a replica's gradients had a NaN or "
            "Inf (on_nonfinite='skip'). strategy.skipped_steps counts all skipped steps. To find "
            f"the variable, use on_nonfinite='raise'. {see('TFA-509')}",
            stacklevel=2,
        )

    def raising_plain_errors(self, function):
        """Return a training function that raises a FloatingPointError if `skip_or_raise` raises.

        TensorFlow's error shows the whole graph after the message; the FloatingPointError has only
        the message. If the action is not ``"raise"``, `function` itself is returned.

        Args:
            function: the function that `fit` calls for each step.
        """
        if self.action != "raise":
            return function

        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            except tf.errors.InvalidArgumentError as error:
                text = f"{re.escape(MESSAGE)}.*?{re.escape(MESSAGE_END)}"
                found = re.search(text, str(error), re.S)
                if not found:
                    raise
                message = found.group()
            raise FloatingPointError(message)

        return call
