"""Counts the collectives that this process has entered and left.

A worker that stays inside a collective waits for other workers. From outside it looks like a worker
that computes, because Python sees a single call of a function in both cases. So compiled functions
count the collectives that they enter and leave.
"""

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class CollectiveCounters:
    """Counts collectives that this process enters and leaves. Create it outside of a strategy."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._counts = tf.Variable([0, 0], trainable=False, dtype=tf.int64)
        self._eager = [0, 0]
        self._lock = threading.Lock()

    def around(self, inputs: Any, collectives: Callable[[], Any]) -> Any:
        """Call a function that runs collectives. Count them as entered before, and as left after.

        The counting does not delay the collectives, which may begin before all `inputs` are
        available.

        Args:
            inputs: structure of tensors that this worker contributes.
            collectives: function that returns a structure of tensors.
        """
        if tf.executing_eagerly():
            return self.during(collectives)
        self._count(inputs, [1, 0])
        outputs = collectives()
        self._count(outputs, [0, 1])
        return outputs

    def _count(self, tensors, increments):
        tensors = tf.nest.flatten(tensors, expand_composites=True)
        with tf.control_dependencies(tensors), tf.device("CPU:0"):
            self._counts.assign_add(tf.constant(increments, tf.int64), read_value=False)

    def during(self, collectives: Callable[[], Any]) -> Any:
        """Count a collective that Python waits for. Called outside of traced functions."""
        with self._lock:
            self._eager[0] += 1
        try:
            return collectives()
        finally:
            with self._lock:
                self._eager[1] += 1

    def read(self) -> tuple[int, int, int]:
        """Return how many collectives were entered and left, and which collective Python waits for.

        The third value is 0 if Python waits for no collective. Otherwise it is the number of the
        collective that Python waits for, counted from 1 among the collectives of `during`.
        """
        entered, left = self._counts.numpy().tolist()
        entered_by_python, left_by_python = self._eager
        waits_for = entered_by_python if entered_by_python > left_by_python else 0
        return entered + entered_by_python, left + left_by_python, waits_for
