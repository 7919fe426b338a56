"""Steps in which one replica's gradients are not finite: left out, or an error."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from support import keras_versions
from support.keras_versions import LossScaleOptimizer, copies_of, loss_scale_of

from scenarios.basics import OPTIMIZERS, compiled, message_of, on_replicas, use_rule
from scenarios.given_gradients import built, gradients_of
from tf_adasum.compat import keras as keras_compat
from tf_adasum.replicas.nonfinite_gradients import NonFinite

STEPS = 4
BAD_AFTER = 1  # so many steps


# The end of the paths of what loss scaling changes, where it leaves a step out.
OF_LOSS_SCALING = ("dynamic_scale", "step_counter", "current_loss_scale", "good_steps")
if keras_versions.IS_KERAS_2:
    OF_LOSS_SCALING += ("iteration", "iter")


def left_out(strategy, rule, optimizer, guard, poisoned, sparse=False):
    """The same steps twice; the second time with one more, of which a replica's part is poisoned.

    Args:
        strategy: the workers' strategy.
        rule: the rule's name.
        optimizer: a name in OPTIMIZERS.
        guard: "loss scaling", of an Inf, or "skip", of a NaN.
        poisoned: the replica.
        sparse: whether one gradient is sparse.
    """
    use_rule(strategy, rule)
    is_scaled = guard == "loss scaling"

    def make():
        own = OPTIMIZERS[optimizer]()
        return LossScaleOptimizer(own, initial_scale=1024.0) if is_scaled else own

    gradients = gradients_of(strategy.num_replicas_in_sync, STEPS + 1)  # the last one is poisoned
    for each in gradients:
        each[STEPS] = each[BAD_AFTER]
    gradients[0][STEPS, poisoned, 0] = np.inf if is_scaled else np.nan
    strategy._nonfinite = NonFinite(strategy, "propagate" if is_scaled else guard)
    variables, made, step = built(strategy, make, gradients, is_scaled, sparse)
    kept = [*variables, *keras_compat.all_variables(made)]
    for state in keras_compat.aggregation_states_of(made):
        if state.rule_state:
            kept += state.rule_state.variables
    kept = [v for v in kept if not keras_compat.path_of(v).endswith(OF_LOSS_SCALING)]
    initially, results = on_replicas(strategy, kept), {}
    for run in ("without", "with"):
        for number in range(STEPS):
            if run == "with" and number == BAD_AFTER:
                results |= on_replicas(strategy, kept, "before ")
                step(tf.constant(STEPS))
                results |= on_replicas(strategy, kept, "after ")
            elif is_scaled and keras_versions.IS_KERAS_2 and number == BAD_AFTER:
                made.iterations.assign_add(1)  # it counts what it leaves out
            step(tf.constant(number))
        results |= on_replicas(strategy, kept, f"{run} ")
        if run == "without":
            copies = (copy for variable in kept for copy in copies_of(strategy, variable))
            for copy, value in zip(copies, initially.values(), strict=True):
                copy.assign(value)
            if keras_versions.IS_KERAS_2:  # whose path is left out above
                made.iterations.assign(0)
    scale = loss_scale_of(made).numpy() if is_scaled else 512.0
    skipped = 1 if is_scaled else strategy.skipped_steps
    return results | {"scale": scale, "skipped": skipped}


def fit(strategy, rule, action, optimizer="adam", **options):
    """A fit with sparse gradients in which one row of the second of four steps is NaN.

    Returns:
        The error, whether all weights are finite, how many steps were taken and skipped, warnings.
    """
    use_rule(strategy, rule)
    batch = 8 * strategy.num_replicas_in_sync
    ids = np.random.default_rng(5).integers(0, 20, [batch * 4, 3])
    y = np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")
    y[2 * batch - 1] = np.nan
    strategy._nonfinite = NonFinite(strategy, action)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        layers = [keras.layers.Input([3], dtype="int32"), *layers]
        model = compiled(strategy, lambda: layers, OPTIMIZERS[optimizer], **options)
        of_fit = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0}
        message = message_of(lambda: model.fit(ids, y, **of_fit))
    return {
        "message": message,
        "finite": [np.isfinite(weight).all() for weight in model.get_weights()],
        "counts": [model.optimizer.iterations.numpy(), strategy.skipped_steps],
        "warnings": [str(w.message) for w in caught if "were skipped" in str(w.message)],
    }
