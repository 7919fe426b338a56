"""The two environments of the tests: Keras 3 with TensorFlow 2.21, Keras 2 with TensorFlow 2.15.

A plugin: it skips tests for Keras 3 only. Tests import from here what has different names in both.
"""

import contextlib
import functools
import re

import keras
import pytest
import tensorflow as tf

from tf_adasum._version import major_minor
from tf_adasum.compat import keras as keras_compat

IS_KERAS_2 = keras.__version__.startswith("2.")

# How many gradients a step may have in `gradients_per_step`.
MOST_GRADIENTS = 4

if IS_KERAS_2:

    def Variable(value, dtype=None, **options):
        """A variable as Keras 3 makes it: of floatx, if nothing else is said."""
        return tf.Variable(tf.cast(value, dtype or keras.backend.floatx()), **options)

    PyDataset = keras.utils.Sequence
    LossScaleOptimizer = keras.mixed_precision.LossScaleOptimizer
    LEARNING_RATE_IN_LOGS = "lr"  # what callbacks that set it call it
    set_dtype_policy = keras.mixed_precision.set_global_policy
else:
    Variable = keras.Variable
    PyDataset = keras.utils.PyDataset
    LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
    LEARNING_RATE_IN_LOGS = "learning_rate"
    set_dtype_policy = keras.config.set_dtype_policy


# ---- steps with several gradients, in one process ----------------------------------------------
#
# Keras 3 accumulates them, call by call. Keras 2 does not: there each of some local replicas has
# one, and what would be several calls is one.


def make_devices():
    """Make the devices of the replicas; only before TensorFlow runs anything."""
    if IS_KERAS_2:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * MOST_GRADIENTS,
        )


@functools.cache
def _strategy_of(replicas):
    return tf.distribute.MirroredStrategy(
        devices_of(replicas),
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def gradients_per_step(count):
    """The context in which a test makes models and optimizers, and takes steps, with so many."""
    return _strategy_of(count).scope() if IS_KERAS_2 and count > 1 else contextlib.nullcontext()


def devices_of(count):
    """Return the devices that a step with so many gradients takes."""
    return [f"CPU:{index}" for index in range(count if IS_KERAS_2 else 1)]


def calls_per_update(count):
    """Return how many calls an update takes if it has so many gradients."""
    return 1 if IS_KERAS_2 else count


def accumulating(cls, learning_rate, steps, **options):
    """Return an optimizer that updates with the mean of so many gradients."""
    if not IS_KERAS_2:
        return cls(learning_rate, gradient_accumulation_steps=steps, **options)
    assert calls_at_once() == steps, f"this needs gradients_per_step({steps})"
    return cls(learning_rate, **options)


def calls_at_once():
    """Return how many calls of Keras 3 are one here."""
    return tf.distribute.get_strategy().num_replicas_in_sync if IS_KERAS_2 else 1


def build(optimizer, variables):
    """Build an optimizer; a legacy one, too, which Keras builds in its first step."""
    keras_compat.build(optimizer, variables)


def apply(optimizer, calls, variables):
    """Take a step with the gradients of `calls_at_once` calls, a list of lists."""
    if not IS_KERAS_2:
        (gradients,) = calls
        optimizer.apply(gradients, variables)
        return
    strategy = tf.distribute.get_strategy()
    assert len(calls) == strategy.num_replicas_in_sync

    def in_replica():
        context = tf.distribute.get_replica_context()
        index = int(tf.get_static_value(context.replica_id_in_sync_group))
        # As of a loss that is divided by the number of replicas.
        gradients = [_divided(gradient, len(calls)) for gradient in calls[index]]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    strategy.run(in_replica)


def apply_each(optimizer, calls, variables, before=lambda _: None, after=lambda _: None):
    """Apply gradients call by call; `before` and `after` are called around each of them."""
    at_once = calls_at_once()
    calls = [[g if g is None else _as_tensor(g) for g in gradients] for gradients in calls]
    for start in range(0, len(calls), at_once):
        together = calls[start : start + at_once]
        for number in range(len(together)):
            before(start + number)
        apply(optimizer, together, variables)
        for number in range(len(together)):
            after(start + number)


def _as_tensor(gradient):
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return gradient if is_sparse else tf.convert_to_tensor(gradient)


def apply_in(strategy, optimizer, gradients, variables):
    """Take a step of the replicas of a strategy with the same gradients on each."""

    def in_replica():
        if IS_KERAS_2:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        else:
            optimizer.apply(gradients, variables)

    strategy.run(in_replica)


def legacy_optimizer(name, *args, **options):
    """Return an optimizer of Keras 2's older kind; of the only one elsewhere."""
    module = keras.optimizers.legacy if IS_KERAS_2 else keras.optimizers
    return getattr(module, name)(*args, **options)


def _divided(gradient, count):
    if gradient is None or count == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / count


# The averages of `use_ema` start with the weights before the first step, or after it.
AVERAGES_START_BEFORE = IS_KERAS_2

# Few steps: on local replicas each takes half a second eagerly, and else tracing takes as long.
RUNS_EAGERLY = not IS_KERAS_2


# ---- what is in one version only ---------------------------------------------------------------
#
# A test of what Keras 2 has no notion of says so, with the reason: `pytest.mark.keras3_only`.

needs_accumulation = pytest.mark.keras3_only("Keras 2 has no gradient_accumulation_steps")
needs_loss_scale_factor = pytest.mark.keras3_only("Keras 2 has no loss_scale_factor")
needs_own_backups = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")
needs_endless_fit = pytest.mark.keras3_only(
    "`fit` of Keras 2 demands steps_per_epoch with a distributed dataset"
)
needs_state_of_lamb = pytest.mark.keras3_only(
    "Keras 2 writes no state of a legacy optimizer into a .keras file"
)
needs_nadam = pytest.mark.keras3_only(
    "Nadam of Keras 2 counts steps in Python, and takes other ones in a function than eagerly"
)


def needs_keras(version, reason):
    """Return the marker of a test of what Keras 3 had not before a version, with the reason."""
    is_older = not IS_KERAS_2 and major_minor(keras.__version__) < major_minor(version)
    return pytest.mark.skipif(is_older, reason=f"Keras before {version}: {reason}")


def marked(values, marks):
    """Return the parameters of a test, some of them with a marker.

    Args:
        values: of the parameter.
        marks: dict from some of them to their marker.
    """
    return [pytest.param(each, marks=marks[each]) if each in marks else each for each in values]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skip tests that are for Keras 3 only, under Keras 2."""
    for test in items if IS_KERAS_2 else ():
        marker = test.get_closest_marker("keras3_only")
        if marker:
            test.add_marker(pytest.mark.skip(reason=marker.args[0]))


# ---- what has another form in each -------------------------------------------------------------


def loss_scale_of(optimizer):
    """Return the current scale of a `LossScaleOptimizer`, as a tensor."""
    return tf.convert_to_tensor(optimizer.loss_scale if IS_KERAS_2 else optimizer.dynamic_scale)


def scaled(optimizer, gradients):
    """Return gradients as `apply` of a `LossScaleOptimizer` wants them.

    That of Keras 2 has taken the scale out of them in `get_unscaled_gradients`.
    """
    if IS_KERAS_2:
        return gradients
    return [gradient * loss_scale_of(optimizer) for gradient in gradients]


def is_slot(name):
    """Whether the path of an optimizer's variable is that of a momentum or a velocity."""
    return bool(re.search(r"\b[mv]/" if IS_KERAS_2 else "momentum|velocity", name))


def in_model(path):
    """Return the path of a variable of a Sequential model; names of Keras 2 lack the model's."""
    return path if IS_KERAS_2 else f"sequential/{path}"


def copies_of(strategy, variable):
    """Return the variables on the local replicas that a Keras variable stands for."""
    return strategy.experimental_local_results(keras_compat.tensorflow_variable(variable))
