"""TensorFlow's runtime: XLA, the end of collectives, functions, and the global seed."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_adasum.errors import see
from tf_adasum.seams.tensorflow.private_names import (
    FuncGraph,
    Function,
    GraphOrParentsInXlaContext,
    autograph_artifact,
    context,
    distribute_lib,
)

NO_XLA = (
    "Gradients cannot be aggregated inside XLA-compiled code: TensorFlow's collectives have no XLA "
    "kernels on this device. Compile the model with jit_compile=False (or 'auto'). "
    + see("TFA-303")
)


def refuse_xla() -> None:
    """Raise an error if gradients would be aggregated inside code that XLA compiles."""
    if compiles_with_xla():
        raise ValueError(NO_XLA)


def compiles_with_xla() -> bool:
    """Whether the function that is being traced will be compiled by XLA."""
    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def abort_collectives(message: str) -> None:
    """End all collectives of this process, now and later, with `tf.errors.UnavailableError`."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def is_tf_function(function: object) -> bool:
    """Whether it is what `tf.function` returns."""
    return isinstance(function, Function)


def counted_alone(python_function: Callable, **options: Any) -> Callable:
    """Return a `tf.function` that TensorFlow does not warn of because of others like it.

    It counts how often functions are traced by their code, which closures share: one for each of
    five models, and each traced once, would be five retracings. A partial has no code.
    """
    return tf.function(functools.partial(python_function), **options)


def of_function(function: Any, python_function: Callable) -> Callable:
    """Return a `tf.function` of another Python function, with the same arguments of its own."""
    other = function._clone(python_function=python_function)
    return autograph_artifact(other)  # or `Strategy.run` would wrap it, and not know it again


def trace(strategy: tf.distribute.Strategy, function: Callable, argument: Any) -> None:
    """Trace what a strategy runs, for the variables that the function makes; nothing is computed.

    They are created at once; in a `tf.function` they are created with its first call.

    Args:
        strategy: the strategy.
        function: what each replica runs.
        argument: its argument: structure of distributed values, tensors, arrays or type specs.
    """
    with FuncGraph("trace").as_default():
        strategy.run(function, args=(_placeholders(argument),))


def placeholders(specs: Any) -> Any:
    """Return symbolic values of a graph that nothing runs, for their shapes and dtypes.

    Args:
        specs: structure of type specs, such as the element spec of a distributed dataset.
    """
    with FuncGraph("placeholders").as_default():
        return _placeholders(specs)


def _placeholders(structure: Any) -> Any:
    def of(value):
        if value is None:
            return None
        spec = value if isinstance(value, tf.TypeSpec) else tf.type_spec_from_value(value)
        flat = tf.nest.flatten(spec, expand_composites=True)
        own = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in flat]
        return tf.nest.pack_sequence_as(spec, own, expand_composites=True)

    return tf.nest.map_structure(of, structure)


@contextlib.contextmanager
def without_strategy() -> Iterator[tf.distribute.Strategy]:
    """Return a context manager that leaves the scope of every strategy; it gives TensorFlow's own.

    Scopes cannot be nested.
    """
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    try:
        yield tf.distribute.get_strategy()
    finally:
        distribute_lib._pop_per_thread_mode()


def global_seed() -> int | None:
    """Return the seed given to `tf.random.set_seed`, or None."""
    return context.global_seed()


def seeding() -> object:
    """Return an object that is another one after each `tf.random.set_seed`; None before it."""
    return getattr(context.context(), "_rng", None)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Build random operations as after `tf.random.set_seed(seed)`, and leave no trace of it."""
    state = context.context()
    saved_seed, saved_generator = state._seed, getattr(state, "_rng", None)
    tf.random.set_seed(seed)
    try:
        yield
    finally:
        tf.random.set_seed(saved_seed)
        if saved_generator:  # makes the seeds of operations; there is none before the first seed
            state._rng = saved_generator
