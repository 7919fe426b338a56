"""Steps in which one replica's gradients are not finite: left out, or an error."""

import contextlib
import warnings

import keras
import numpy as np
import tensorflow as tf
from support import keras_versions
from support.keras_versions import LossScaleOptimizer, loss_scale_of

from scenarios.basics import OPTIMIZERS, build_mlp, message_of, random_data, use_rule
from scenarios.given_gradients import gradients_of, new_variables
from tf_adasum.compat import keras as keras_compat
from tf_adasum.replicas import nonfinite_gradients

STEPS = 4
BAD_AFTER = 1  # so many steps


@contextlib.contextmanager
def on_nonfinite(strategy, action):
    """Let a strategy act like one that was made with this argument."""
    before = strategy._nonfinite
    strategy._nonfinite = nonfinite_gradients.NonFinite(strategy, action)
    try:
        yield
    finally:
        strategy._nonfinite = before


# The end of the paths of what loss scaling changes, where it leaves a step out.
OF_LOSS_SCALING = ("dynamic_scale", "step_counter", "current_loss_scale", "good_steps")
if keras_versions.IS_KERAS_2:
    OF_LOSS_SCALING += ("iteration", "iter")


class Stepping:
    """An optimizer on gradients that are given; one replica's may be poisoned.

    Args:
        strategy: the strategy.
        make: function that returns the optimizer.
        is_scaled: whether a `LossScaleOptimizer` is around it, and the gradients are scaled.
        sparse: whether the first variable's gradient is sparse.
    """

    def __init__(self, strategy, make, is_scaled=False, sparse=False):
        self.strategy, replicas = strategy, strategy.num_replicas_in_sync
        gradients = list(map(tf.constant, gradients_of(replicas, STEPS)))
        with strategy.scope():
            self.variables = new_variables()
            optimizer = make()
            if is_scaled:
                optimizer = LossScaleOptimizer(optimizer, initial_scale=1024.0)
            self.optimizer = optimizer
            keras_compat.build(optimizer, self.variables)

        @tf.function(autograph=False)
        def step(number, poison):
            def in_replica():
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                own = [gradient[number][replica] for gradient in gradients]
                if is_scaled:
                    own = keras_versions.scaled(optimizer, own)
                own[0] += tf.concat([[[poison[replica]] * 3], tf.zeros([3, 3])], axis=0)
                if sparse:
                    own[0] = tf.IndexedSlices(own[0][:2], tf.constant([1, 3]), tf.constant([4, 3]))
                keras_compat.apply(optimizer, own, self.variables)

            strategy.run(in_replica)

        self._step = step

    def step(self, number, poisoned=None, poison=np.inf):
        """The step of a number; a replica's gradient may get a poison."""
        poisons = np.zeros(self.strategy.num_replicas_in_sync, "float32")
        if poisoned is not None:
            poisons[poisoned] = poison
        self._step(tf.constant(number), tf.constant(poisons))

    def copies(self):
        """dict from names to all variables on each local replica, but those of loss scaling."""
        kept = [*self.variables, *keras_compat.all_variables(self.optimizer)]
        for state in keras_compat.aggregation_states_of(self.optimizer):
            if state.rule_state:
                kept += state.rule_state.variables
        local = self.strategy.experimental_local_results
        return {
            f"{index} {keras_compat.path_of(variable)}.{number}": copy
            for index, variable in enumerate(kept)
            if not keras_compat.path_of(variable).endswith(OF_LOSS_SCALING)
            for number, copy in enumerate(local(keras_compat.tensorflow_variable(variable)))
        }

    def state(self):
        return {name: copy.numpy() for name, copy in self.copies().items()}


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
    with on_nonfinite(strategy, "propagate" if is_scaled else guard):
        stepping = Stepping(strategy, OPTIMIZERS[optimizer], is_scaled, sparse)
        results, initially = {}, stepping.state()
        for run in ("without", "with"):
            for number in range(STEPS):
                if run == "with" and number == BAD_AFTER:
                    results |= {f"before {n}": v for n, v in stepping.state().items()}
                    stepping.step(number, poisoned, np.inf if is_scaled else np.nan)
                    results |= {f"after {n}": v for n, v in stepping.state().items()}
                elif is_scaled and keras_versions.IS_KERAS_2 and number == BAD_AFTER:
                    stepping.optimizer.iterations.assign_add(1)  # it counts what it leaves out
                stepping.step(number)
            results |= {f"{run} {name}": value for name, value in stepping.state().items()}
            if run == "without":
                for name, copy in stepping.copies().items():
                    copy.assign(initially[name])
                if keras_versions.IS_KERAS_2:  # whose path is left out above
                    stepping.optimizer.iterations.assign(0)
        scale = loss_scale_of(stepping.optimizer).numpy() if is_scaled else 512.0
        skipped = 1 if is_scaled else strategy.skipped_steps
    return results | {"scale": scale, "skipped": skipped}


def raised_in_fit(strategy, rule, **options):
    """The same of a row of the last replica that is NaN, in step 2 of `fit`."""
    use_rule(strategy, rule)
    batch = 8 * strategy.num_replicas_in_sync
    x, y = random_data(4 * batch)
    y[2 * batch - 1] = np.nan
    keras.utils.set_random_seed(3)
    with on_nonfinite(strategy, "raise"):
        with strategy.scope():
            model = build_mlp()
            model.compile("adam", "mse", **options)
        message = message_of(lambda: model.fit(x, y, batch_size=batch, shuffle=False, verbose=0))
    is_finite = all(np.isfinite(weight).all() for weight in model.get_weights())
    steps = int(model.optimizer.iterations.numpy())
    return {"message": message, "unchanged": is_finite and steps == 1}


def skipped_in_fit(strategy, rule, optimizer):
    """A fit with sparse gradients in which one row of the second of four steps is NaN."""
    use_rule(strategy, rule)
    batch = 8 * strategy.num_replicas_in_sync
    ids = np.random.default_rng(5).integers(0, 20, [batch * 4, 3])
    y = np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")
    y[2 * batch - 1] = np.nan
    with on_nonfinite(strategy, "skip"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with strategy.scope():
            layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.layers.Input([3], dtype="int32"), *layers])
            model.compile(OPTIMIZERS[optimizer](), "mse")
        model.fit(ids, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        skipped = strategy.skipped_steps
    return {
        "finite": [np.isfinite(weight).all() for weight in model.get_weights()],
        "counts": [model.optimizer.iterations.numpy(), skipped],
        "warnings": [str(w.message) for w in caught if "were skipped" in str(w.message)],
    }
