"""Counters of the collectives that this process has entered and left.

A worker that is inside a collective and makes no progress waits for others. From outside it looks
like a worker that computes: Python sees a single call of a function in both cases. So compiled
functions count how many collectives they enter and leave.
"""

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class CollectiveCounters:
    """How many collectives this process has entered and left; create it outside of a strategy."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._counts = tf.Variable([0, 0], trainable=False, dtype=tf.int64)
        self._eager = [0, 0]
        self._lock = threading.Lock()

    def around(self, inputs: Any, collectives: Callable[[], Any]) -> Any:
        """Call a function that makes collectives; count before and after them.

        Nothing waits for the counting: a collective may begin before all of `inputs` are there.

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
        """Count what Python waits for; called outside of functions that are traced."""
        with self._lock:
            self._eager[0] += 1
        try:
            return collectives()
        finally:
            with self._lock:
                self._eager[1] += 1

    def read(self) -> tuple[int, int, int]:
        """Return how many were entered, how many were left, and where Python waits.

        The third is the number of a collective that Python waits for, 0 if it waits for none.
        """
        entered, left = self._counts.numpy().tolist()
        of_python, left_by_python = self._eager
        waits_for = of_python if of_python > left_by_python else 0
        return entered + of_python, left + left_by_python, waits_for
