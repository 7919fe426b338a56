"""Chooses the instance keys of collectives, and reuses keys.

TensorFlow uses a new key for every collective, and never frees the 1.6 kB of memory that each key
needs on every worker (observed with TensorFlow 2.21).
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_adasum.compat.tensorflow import dtype_encoding
from tf_adasum.compat.tensorflow.private_names import (
    CONTROL_FLOW,
    CollectiveReplicaLauncher,
    FuncGraph,
    ResourceVariable,
    hooks,
)

# Reused keys are far above the keys that TensorFlow counts up from 100. After an error, the next
# generation of keys begins. There are keys for 2^13 generations.
FIRST_REUSED_KEY, KEYS_OF_A_SIGNATURE, SIGNATURES = 2**24, 8, 2**14
GENERATIONS = 2**30 // (KEYS_OF_A_SIGNATURE * SIGNATURES)
FIRST_COUNTED_KEY, COUNTED_KEYS = 2**30 + 2**25, 2**30 - 2**26
_COUNTED = ("counted",)

# Between the first keys of two calls over UCX; custom_ops/tensorflow/ucx_runs.cc takes a key apart
# again.
FIRST_KEYS_APART = 2**24

# TensorFlow numbers the groups of every strategy from 1, so two strategies in one process would
# confuse their collectives. Each strategy gets a million group numbers. The number of a group of
# only some replicas is at least 1000 above the number of the group of all replicas.
GROUPS_OF_A_STRATEGY = 10**6
_bases = itertools.count(GROUPS_OF_A_STRATEGY, GROUPS_OF_A_STRATEGY)
FIRST_SUBGROUP = 1000


def next_base() -> int:
    """Return the first number for the groups of a new strategy."""
    return next(_bases)


class KeyReuse:
    """Decides when collective keys may be reused: only inside calls that every worker makes.

    An error can interrupt a collective, and TensorFlow keeps the data of this collective. So its
    key must not be used again. If an error has ended a call, the workers agree on a new generation
    of keys when the next call begins.

    Attributes:
        is_on: whether keys are reused now.
        generation: how many times an error has ended a call that every worker makes.
        is_broken_off: whether an error has ended a call on this worker since the workers last
            agreed on a generation.
    """

    def __init__(self) -> None:
        self.is_on, self.generation, self.is_broken_off = False, 0, False

    @contextlib.contextmanager
    def within(self, agree: Callable[[int, bool], np.ndarray]) -> Iterator[None]:
        """Return a context manager that reuses keys, for a call that every worker makes.

        Args:
            agree: function that gets this worker's `generation` and `is_broken_off`, and returns
                the values of all workers, ``[workers, 2]``.
        """
        if self.is_on:
            yield
            return
        of_all = agree(self.generation, self.is_broken_off)
        self.generation = int(of_all[:, 0].max() + of_all[:, 1].max())
        self.is_on, self.is_broken_off = True, False
        try:
            yield
        except BaseException:
            self.is_broken_off = True
            raise
        finally:
            self.is_on = False


@hooks.overrides("all_reduce", "all_gather", "_all_gather", "_next_instance_key")
class ReusingLauncher(CollectiveReplicaLauncher):
    """TensorFlow's launcher of a replica's collectives, which reuses keys.

    The collectives of a device run one after the other, and no collective ends before all members
    have received the data. So collectives with the same operation, dtype and shape use 8 keys in
    rotation. All workers count these keys in the same way, however often each worker traces a
    function. They number these signatures in the order of their first use since the last error.
    This order is the same on all workers, because a device runs its collectives in one order: in
    another order, two workers would wait for each other. If a shape is not known in advance, as for
    sparse gradients, keys are counted when the function runs. Every iteration of a loop then needs
    a new key, because the shapes may differ, and all collectives with the same key need the same
    shape. In eager code, and if `KeyReuse` is off, TensorFlow chooses the keys.

    Args:
        reuse: the `KeyReuse`.
        args: the arguments of TensorFlow's launcher.
    """

    def __init__(self, reuse: KeyReuse, *args):
        super().__init__(*args)
        self._reuse = reuse
        self._signature: tuple | None = None
        # For each signature: its number, and how many keys were chosen for it.
        self._made: dict[tuple, tuple[int, int]] = {}
        self._generation = 0  # the generation of the keys in `_made`
        with tf.init_scope(), tf.device("CPU:0"):
            self._counted = ResourceVariable(0, dtype=tf.int32)

    @contextlib.contextmanager
    def key_of(self, kind: str, value: tf.Tensor) -> Iterator[None]:
        """Return a context manager that chooses the key of the collective created inside.

        Args:
            kind: name of the operation.
            value: tensor that the collective sends.
        """
        if not tf.executing_eagerly():
            is_known = value.shape.is_fully_defined()
            self._signature = (kind, value.dtype.name, *value.shape) if is_known else _COUNTED
        try:
            yield
        finally:
            self._signature = None

    def all_reduce(self, input_tensor, *args, **kwargs):
        """Reuse keys, because TensorFlow never frees them, and sum values of every dtype."""
        encoded = dtype_encoding.encoded_for_sum(input_tensor)
        with self.key_of("reduce", encoded):
            total = super().all_reduce(encoded, *args, **kwargs)
        return dtype_encoding.decoded_sum(total, input_tensor.dtype)

    def all_gather(self, input_tensor, *args, **kwargs):
        """Convert float8 values first, because TensorFlow cannot pad values of this dtype."""
        dtype = input_tensor.dtype
        if not (dtype.is_floating and dtype.size == 1):
            return super().all_gather(input_tensor, *args, **kwargs)
        gathered = super().all_gather(dtype_encoding.encoded(input_tensor), *args, **kwargs)
        return dtype_encoding.decoded(gathered, dtype)

    def _all_gather(self, input_tensor, options):
        """Reuse keys, because TensorFlow never frees them, and gather values of every dtype."""
        encoded = dtype_encoding.encoded(input_tensor)
        with self.key_of("gather", encoded):
            gathered = super()._all_gather(encoded, options)
        return dtype_encoding.decoded(gathered, input_tensor.dtype)

    def _next_instance_key(self):
        """Choose the key of a collective, because TensorFlow has no argument for the key."""
        if self._signature is None:
            return super()._next_instance_key()
        if self._signature is _COUNTED:
            with tf.device("CPU:0"):
                return FIRST_COUNTED_KEY + self._counted.assign_add(1) % COUNTED_KEYS
        return self._key_of(self._signature)

    def _key_of(self, signature):
        if not tf.executing_eagerly():  # evaluated in each call of the function
            graph = tf.compat.v1.get_default_graph()
            ask = functools.partial(self._key_of, signature)
            return graph.capture_call_time_value(ask, tf.TensorSpec([], tf.int32))
        if not self._reuse.is_on:
            return super()._next_instance_key()
        if self._generation != self._reuse.generation:
            self._generation = self._reuse.generation
            self._made.clear()
        number, made = self._made.setdefault(signature, (len(self._made), 0))
        if number >= SIGNATURES:
            return super()._next_instance_key()
        self._made[signature] = number, made + 1
        slot = self._generation % GENERATIONS * SIGNATURES + number
        key = FIRST_REUSED_KEY + KEYS_OF_A_SIGNATURE * slot + made % KEYS_OF_A_SIGNATURE
        with tf.device("CPU:0"):
            return tf.constant(key, tf.int32)


class CallKeys:
    """Creates keys for one replica's collectives over UCX. A key is used once, and needs no memory.

    The upper bits of a key are new each time Python calls a traced function or, in eager code, a
    collective. The lower 24 bits count the collectives that this call has executed, in the order of
    the program. They start again in each call, because an error may end a call on different workers
    after different numbers of collectives. So all workers count in the same way, however often each
    worker traces a function. (A `tf.py_function` must not call a function with collectives, because
    it and the collectives of its caller run in no fixed order.)
    """

    def __init__(self) -> None:
        self._first_keys = itertools.count(0, FIRST_KEYS_APART)
        with tf.init_scope(), tf.device("CPU:0"):
            self._last_key = ResourceVariable(-1, dtype=tf.int64)

    def next(self) -> tf.Tensor:
        """Return a new key, an int64 scalar."""
        first_key = _once_in_each_call(self._next_first_key)
        if tf.executing_eagerly():
            return first_key
        with tf.device("CPU:0"):
            key = tf.maximum(first_key, self._last_key.read_value() + 1)
            with tf.control_dependencies([self._last_key.assign(key, read_value=False)]):
                return tf.identity(key)

    def _next_first_key(self):
        with tf.device("CPU:0"):
            return tf.constant(next(self._first_keys), tf.int64)


def _once_in_each_call(ask: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Return the result of `ask`, which runs once in each call of the outermost traced function."""
    if tf.executing_eagerly():
        return ask()
    graph = tf.compat.v1.get_default_graph()
    ask_outside = functools.partial(_once_in_each_call, ask)
    spec = tf.TensorSpec([], tf.int64)
    return graph.capture_call_time_value(ask_outside, spec, key=("tf_adasum", ask))


@hooks.replaces(FuncGraph, "capture_call_time_value", feature=CONTROL_FLOW)
def capture_call_time_value(original, self, *args, **kwargs):
    """Let functions with collectives be called inside `tf.cond` and `tf.while_loop`.

    Each collective captures an instance key when its function is called. If the function is called
    inside a branch or a loop body, TensorFlow would create the capture in the graph of the branch
    or body. This graph is never called, so the error would be "You must feed a value for
    placeholder". This hook creates the capture in the outer function.
    """
    graph = self
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    with graph.as_default():
        return original(graph, *args, **kwargs)
