"""Custom training loops, for both generations: a step must run on each replica."""

import keras
import tensorflow as tf

from tf_adasum.errors import see
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.optimizers import is_ours, tensorflow_variable

WHAT_TO_WRITE = (
    "A training step has to run on each replica. Put the model's call, `tape.gradient` and "
    "`optimizer.apply` into a function of one replica's rows, and call it with `strategy.run`:\n\n"
    "    dataset = strategy.experimental_distribute_dataset(dataset)\n"
    "    for x, y in dataset:\n"
    "        losses = strategy.run(train_step, args=(x, y))\n\n" + see("TFA-302")
)


@hooks.replaces(tf.GradientTape, "gradient")
def gradient(original, self, target, sources, *args, **kwargs):
    """Raise an error with an example if gradients are computed outside of the replicas."""
    try:
        return original(self, target, sources, *args, **kwargs)
    except ValueError as error:
        if _is_between_replicas() and "replica context" in str(error):
            raise RuntimeError(WHAT_TO_WRITE) from error
        raise


@hooks.replaces(keras.Model, "__call__")
def call(original, self, *args, **kwargs):
    """Raise an error with an example if a model is called with the rows of all replicas."""
    try:
        return original(self, *args, **kwargs)
    except (TypeError, ValueError) as error:
        rows = tf.nest.flatten((args, kwargs))
        if any(isinstance(each, tf.distribute.DistributedValues) for each in rows):
            raise RuntimeError(WHAT_TO_WRITE) from error
        raise


def _is_between_replicas():
    return tf.distribute.in_cross_replica_context() and is_ours(tf.distribute.get_strategy())


def refuse_update_outside(variables):
    """Refuse an optimizer's step that does not run on each replica of one of our strategies.

    Without this, each worker would train its own model, without an error.

    Args:
        variables: list of the variables that it is about to update.

    Raises:
        RuntimeError: with an example of the code to write.
    """
    current = tf.distribute.get_strategy()
    for variable in map(tensorflow_variable, variables):
        strategy = getattr(variable, "distribute_strategy", None)
        is_here = strategy is current and not tf.distribute.in_cross_replica_context()
        if is_ours(strategy) and not is_here and strategy.num_replicas_in_sync > 1:
            raise RuntimeError(WHAT_TO_WRITE)
