"""Last batches that leave replicas without rows."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from support import keras_versions

from scenarios.basics import OPTIMIZERS, compiled, on_replicas, random_data, use_rule, weights_of
from tf_adasum.callbacks import ReplicaCheck
from tf_adasum.compat import keras as keras_compat


class OwnStep(keras.Model):
    """Steps of the user's, with a tracker of the mean over the rows, which is NaN without rows."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.tracker = inner, keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x, training=None):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        keras_compat.apply(self.optimizer, gradients, self.trainable_variables)
        self.tracker.update_state(loss)
        return {"tracked": self.tracker.result()}


def model_with_everything(strategy, optimizer="momentum", fit_mode="fit"):
    """Sparse and dense weights, frozen ones, a penalty, statistics, seeds and metrics."""

    def make():
        layers = [
            *([] if fit_mode == "unbuilt" else [keras.layers.Input([3], dtype="int32")]),
            keras.layers.Embedding(50, 4, name="embedding"),
            keras.layers.Flatten(),
            keras.layers.Dense(4, name="frozen", trainable=False),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1), name="last"),
        ]
        return OwnStep(keras.Sequential(layers)) if fit_mode == "own step" else layers

    ways = {"executions": {"steps_per_execution": 2}, "eagerly": {"run_eagerly": True}}
    options = {"metrics": ["mae"], **ways.get(fit_mode, {})}
    return compiled(strategy, make, OPTIMIZERS[optimizer], **options)


def random_ids(rows):
    """Other ids and targets on every replica."""
    return np.random.default_rng(0).integers(0, 50, [rows, 3]), random_data(rows)[1]


def fit(strategy, rule, optimizer, fit_mode):
    """Batches of 8 rows per replica, then one of a single row; the weights are compared.

    Of DeltaAdasum, the slots at both ends of the last step are returned, too.
    """
    use_rule(strategy, rule)
    batch = 8 * strategy.num_replicas_in_sync
    ids, y = random_ids(2 * batch + 1)
    model = model_with_everything(strategy, optimizer, fit_mode)
    in_last_step = {}

    def note(when):
        def note_slots(batch, logs):
            named = ((keras_compat.path_of(v), v) for v in keras_compat.all_variables(own))
            slots = [variable for path, variable in named if keras_versions.is_slot(path)]
            in_last_step.update(on_replicas(strategy, slots, f"{when} "))

        return note_slots

    own, callbacks = model.optimizer, [ReplicaCheck(check_freq=1)]
    if "delta" in optimizer:
        moments = {"on_train_batch_begin": note("begin"), "on_train_batch_end": note("end")}
        callbacks.append(keras.callbacks.LambdaCallback(**moments))
    options = {"epochs": 2, "shuffle": False, "callbacks": callbacks}
    with mock.patch.object(strategy, "_check_model", wraps=strategy._check_model) as check:
        logs = model.fit(ids, y, batch_size=batch, verbose=0, **options).history
    strategy.check_replicas()
    slots = keras_compat.all_variables(own)
    return {
        **in_last_step,
        **{f"log {name}": values for name, values in logs.items()},
        "evaluated": model.evaluate(ids, y, batch_size=batch, verbose=0),
        **weights_of(model),
        **{
            f"slot{index}": v.numpy()
            for index, v in enumerate(slots)
            if "rng" not in keras_compat.path_of(v)
        },
        "checks": check.call_count,
    }
