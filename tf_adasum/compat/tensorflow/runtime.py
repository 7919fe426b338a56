"""Functions for TensorFlow's runtime: XLA, aborted collectives, tracing, and the global seed."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_adasum.compat.tensorflow.private_names import (
    FuncGraph,
    Function,
    GraphOrParentsInXlaContext,
    autograph_artifact,
    context,
    distribute_lib,
)
from tf_adasum.errors import see

NO_XLA = (
    "Gradients cannot be aggregated inside XLA-compiled code, because TensorFlow's collectives "
    "have no XLA kernels on this device. Compile the model with jit_compile=False (or 'auto'). "
    + see("TFA-303")
)

# The distance between the seeds of two replicas. It is odd, so that no two replicas get the same
# seed, and large, so that the seeds look unrelated.
SEED_STRIDE = 0x9E3779B1


def replica() -> int | None:
    """Return the current replica's id, counted over all workers; None outside of a replica."""
    context = tf.distribute.get_replica_context()
    return context and int(tf.get_static_value(context.replica_id_in_sync_group))


def in_graph_of_replica() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operations are added to the graph of the replica's function.

    The operations run before the function within this graph that is being traced.
    """
    graph = getattr(threading.current_thread(), "graph", None)
    return contextlib.nullcontext() if tf.executing_eagerly() or not graph else graph.as_default()


def can_reduce() -> bool:
    """Return whether a replica can reduce values here, and not only outside of this function."""
    if tf.executing_eagerly():
        return True
    graph = getattr(threading.current_thread(), "graph", None)  # of a replica's thread
    return graph is tf.compat.v1.get_default_graph()


def compiles_with_xla() -> bool:
    """Return whether XLA will compile the function that is being traced."""
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def abort_collectives(message: str) -> None:
    """Let all current and later collectives of this process raise UnavailableError."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def is_tf_function(function: object) -> bool:
    """Return whether an object is a result of `tf.function`."""
    return isinstance(function, Function)


def python_function_of(function: Callable) -> Callable:
    """Return the Python function of a `tf.function`; return other functions unchanged."""
    return function.python_function if is_tf_function(function) else function


def function_without_retrace_warning(python_function: Callable, **options: Any) -> Callable:
    """Return a `tf.function` without AutoGraph, whose tracings TensorFlow counts separately.

    AutoGraph would take most of the time of the first calls, also of the start of a strategy.

    TensorFlow counts the tracings of all functions with the same code together, and warns of
    retracing. Closures share their code, so five closures that are traced once each would count as
    five tracings. A `functools.partial` has no code, so its tracings are counted separately.
    """
    return tf.function(functools.partial(python_function), autograph=False, **options)


def clone_tf_function(function: Any, python_function: Callable) -> Callable:
    """Return a `tf.function` of another Python function, with the same options."""
    other = function._clone(python_function=python_function)
    return autograph_artifact(other)  # so that `Strategy.run` does not wrap it each time


def trace(strategy: tf.distribute.Strategy, function: Callable, argument: Any) -> None:
    """Trace a function in a strategy, so that its variables are created. Nothing is computed.

    The variables are created during the tracing. With a `tf.function`, they would be created only
    in its first call.

    Args:
        strategy: the strategy.
        function: the function that each replica runs.
        argument: the function's argument: structure of distributed values, tensors, arrays or type
            specs.
    """
    with FuncGraph("trace").as_default():
        strategy.run(function, args=(_placeholders(argument),))


def placeholders(specs: Any) -> Any:
    """Return symbolic values with the dtypes and shapes of type specs, in a graph that never runs.

    Args:
        specs: structure of type specs, such as the element spec of a distributed dataset.
    """
    with FuncGraph("placeholders").as_default():
        return _placeholders(specs)


def _placeholders(structure: Any) -> Any:
    def placeholder(value):
        if value is None:
            return None
        spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
        flat = tf.nest.flatten(spec, expand_composites=True)
        own = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in flat]
        return tf.nest.pack_sequence_as(spec, own, expand_composites=True)

    return tf.nest.map_structure(placeholder, structure)


@contextlib.contextmanager
def without_strategy() -> Iterator[tf.distribute.Strategy]:
    """Return a context manager that leaves all strategy scopes and yields the default strategy.

    `Strategy.scope` cannot do this, because scopes cannot be nested.
    """
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    try:
        yield tf.distribute.get_strategy()
    finally:
        distribute_lib._pop_per_thread_mode()


def global_seed() -> int | None:
    """Return the seed given to `tf.random.set_seed`, or None."""
    return context.global_seed()


def global_seed_token() -> object:
    """Return an object. After each call of `tf.random.set_seed` it is another object.

    Before the first call, it is None.
    """
    return getattr(context.context(), "_rng", None)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Return a context manager with the global seed `seed`, which restores the previous seed."""
    state = context.context()
    saved_seed, saved_generator = state._seed, getattr(state, "_rng", None)
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(saved_seed)
        if saved_generator:  # None before the first `set_seed`
            state._rng = saved_generator
