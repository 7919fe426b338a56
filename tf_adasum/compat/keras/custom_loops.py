"""Refuses custom training loops whose steps do not run on each replica (Keras 2 and 3)."""

import tensorflow as tf

from tf_adasum.compat.keras.optimizers import is_ours, tensorflow_variable
from tf_adasum.errors import see

WHAT_TO_WRITE = (
    "A training step has to run on each replica. Put the call of the model, `tape.gradient` and "
    "`optimizer.apply` into a function that takes the rows of one replica, and call it with "
    f"`strategy.run(train_step, args=(x, y))` {see('TFA-302')}"
)


def refuse_update_outside(variables):
    """Raise an error if an optimizer updates variables of our strategy outside of `strategy.run`.

    Without this check, each worker would train its own model, without an error.

    Args:
        variables: list of the variables that the optimizer is about to update.

    Raises:
        RuntimeError: if the update is outside of `strategy.run`, and the strategy has several
            replicas.
    """
    current = tf.distribute.get_strategy()
    for variable in map(tensorflow_variable, variables):
        strategy = getattr(variable, "distribute_strategy", None)
        is_here = strategy is current and not tf.distribute.in_cross_replica_context()
        if is_ours(strategy) and not is_here and strategy.num_replicas_in_sync > 1:
            raise RuntimeError(WHAT_TO_WRITE)
