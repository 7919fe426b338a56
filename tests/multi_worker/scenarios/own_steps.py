"""What workers do for test_own_steps.py: a model with a training step of its own."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import random_data, scope, use_rule
from tf_adasum.compat import keras as keras_compat

STEPS = 4


class Probe(keras.Model):
    """Self-supervised: pairs of unlabelled and labelled rows, and `compile(loss=..., metrics=...)`.

    `call` takes what the encoder returns, and not the data. Nothing depends on the spare layer.
    """

    def __init__(self):
        super().__init__()
        layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(4)]
        self.encoder = keras.Sequential(layers)  # without an Input: the first step builds it
        self.head = keras.layers.Dense(1)
        self.spare = keras.layers.Dense(5)
        self.spare.build([None, 4])

    def compile(self, encoder_optimizer, **kwargs):
        """Keep the other optimizer."""
        super().compile(**kwargs)
        self.encoder_optimizer = encoder_optimizer

    def call(self, code):
        """Judge what the encoder returns."""
        return self.head(code)

    @tf.function  # needless, but some programs have it
    def train_step(self, data):
        """One step of the encoder, to keep rows apart, and one of the head."""
        unlabelled, (x, y) = data
        with tf.GradientTape() as tape:
            code = tf.math.l2_normalize(self.encoder(unlabelled), axis=1)
            loss = tf.reduce_mean(tf.matmul(code, code, transpose_b=True))
        weights = self.encoder.trainable_weights + self.spare.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.encoder_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            judged = self(self.encoder(x))
            loss = self.compute_loss(y=y, y_pred=judged)
        weights = self.head.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self._measured(x, y, judged, loss)

    def test_step(self, data):
        """Measure on labelled rows."""
        x, y = data
        judged = self(self.encoder(x))
        return self._measured(x, y, judged, self.compute_loss(y=y, y_pred=judged))

    def predict_step(self, data):
        """Judge rows."""
        return self(self.encoder(data[0] if isinstance(data, tuple) else data))

    def _measured(self, x, y, judged, loss):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return self.compute_metrics(x, y, judged)


def train(strategy, replicas):
    """Train on data that is the same on all replicas; losses, weights, evaluation, prediction.

    Args:
        strategy: the workers' strategy; each worker has a seed of its own. None for one process.
        replicas: how many get the same eight rows in a step.
    """
    if strategy:
        use_rule(strategy, "adasum")
    keras.utils.set_random_seed(1 + (strategy._workers.rank if strategy else 0))
    x, y = (
        np.concatenate([block for block in np.split(each, STEPS) for _ in range(replicas)])
        for each in random_data(8 * STEPS)
    )
    adam, dataset = keras.optimizers.Adam, tf.data.Dataset.from_tensor_slices
    with scope(strategy):
        model = Probe()
        model.compile(adam(0.01), optimizer=adam(0.02), loss="mse", metrics=["mae"])
    labelled = dataset((x, y)).batch(8 * replicas)
    unlabelled = dataset(x[::-1].copy()).batch(8 * replicas)
    history = model.fit(tf.data.Dataset.zip((unlabelled, labelled)), epochs=3, verbose=0).history
    if strategy:
        strategy.check_replicas()
        for optimizer in keras_compat.optimizers_of(model):
            strategy.check_replicas(keras_compat.all_variables(optimizer))
    return {
        **history,
        "evaluated": model.evaluate(labelled, verbose=0),
        "predicted": model.predict(labelled, verbose=0)[:8],
        **{f"weight{i}": each.numpy() for i, each in enumerate(model.trainable_variables)},
    }
