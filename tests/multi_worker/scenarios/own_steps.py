"""What workers do for test_own_steps.py: models with training steps of their own.

Every function takes the strategy first; `None` is one process without any.
"""

import keras
import numpy as np
import tensorflow as tf
from support.stacks import copies_of

from scenarios.basics import random_data, scope, use_rule
from tf_adasum.compat import keras as keras_compat

FEATURES, LATENT, STEPS = 6, 3, 4


def small_network(outputs, **kwargs):
    """Layers without an Input: they are built by the first step."""
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(outputs)]
    return keras.Sequential(layers, **kwargs)


class Gan(keras.Model):
    """Two networks, two optimizers given to `compile`, a step with two tapes, and no `call`.

    The random numbers of a batch are in the data, so that all replicas can get the same.
    """

    def __init__(self):
        super().__init__()
        self.generator = small_network(FEATURES, name="generator")
        self.discriminator = small_network(1, name="discriminator")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        """Keep what a step needs."""
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_tracker = keras.metrics.Mean(name="d_loss")
        self.g_tracker = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        """What `fit` resets every epoch."""
        return [self.d_tracker, self.g_tracker]

    def _descend(self, optimizer, network, tape, loss):
        gradients = tape.gradient(loss, network.trainable_weights)
        optimizer.apply_gradients(zip(gradients, network.trainable_weights, strict=True))

    def train_step(self, data):
        """One step of each network."""
        real, latent = data
        is_fake = tf.concat([tf.zeros_like(real[:, :1]), tf.ones_like(latent[:, :1])], axis=0)
        with tf.GradientTape() as tape:
            both = tf.concat([real, self.generator(latent)], axis=0)
            d_loss = self.loss_fn(is_fake, self.discriminator(both))
        self._descend(self.d_optimizer, self.discriminator, tape, d_loss)
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(latent))
            g_loss = self.loss_fn(tf.zeros_like(judged), judged)
        self._descend(self.g_optimizer, self.generator, tape, g_loss)
        self.d_tracker.update_state(d_loss)
        self.g_tracker.update_state(g_loss)
        return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}


class Vae(keras.Model):
    """Two networks with Inputs, the optimizer of `compile`, metrics made in `__init__`."""

    def __init__(self):
        super().__init__()
        inputs = keras.layers.Input([FEATURES])
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        outputs = [keras.layers.Dense(LATENT)(hidden), keras.layers.Dense(LATENT)(hidden)]
        self.encoder = keras.Model(inputs, outputs)
        self.decoder = small_network(FEATURES)
        self.tracker = keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self):
        """What `fit` resets every epoch."""
        return [self.tracker]

    def _loss(self, x, noise):
        mean, log_variance = self.encoder(x)
        decoded = self.decoder(mean + tf.exp(0.5 * log_variance) * noise)
        divergence = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
        return tf.reduce_mean(tf.square(x - decoded)) + tf.reduce_mean(divergence)

    def train_step(self, data):
        """One step; the noise is in the data."""
        with tf.GradientTape() as tape:
            loss = self._loss(*data)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"total_loss": self.tracker.result()}

    def test_step(self, data):
        """Measure without a step."""
        self.tracker.update_state(self._loss(*data))
        return {"total_loss": self.tracker.result()}

    def predict_step(self, data):
        """Decode latent vectors, which are other data than those of the training."""
        latent = data[0] if isinstance(data, tuple) else data
        return self.decoder(latent)


class Probe(keras.Model):
    """Self-supervised: pairs of unlabelled and labelled rows, and `compile(loss=..., metrics=...)`.

    `call` takes what the encoder says, and not the data.
    """

    def __init__(self):
        super().__init__()
        self.encoder = small_network(4)
        self.head = keras.layers.Dense(1)

    def compile(self, encoder_optimizer, **kwargs):
        """Keep the other optimizer."""
        super().compile(**kwargs)
        self.encoder_optimizer = encoder_optimizer

    def call(self, code):
        """Judge what the encoder says."""
        return self.head(code)

    @tf.function  # needless, but some programs have it
    def train_step(self, data):
        """One step of the encoder, to keep rows apart, and one of the head."""
        unlabelled, (x, y) = data
        with tf.GradientTape() as tape:
            code = tf.math.l2_normalize(self.encoder(unlabelled), axis=1)
            loss = tf.reduce_mean(tf.matmul(code, code, transpose_b=True))
        weights = self.encoder.trainable_weights
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


def same_for_all(arrays, replicas, blocks=STEPS):
    """Arrays of which every replica gets, in every step, one block of rows that all get."""
    return [
        np.concatenate([block for block in np.split(each, blocks) for _ in range(replicas)])
        for each in arrays
    ]


def data_of(replicas):
    """Rows, targets and noise; each replica gets the same eight rows in a step."""
    x, y = random_data(8 * STEPS, FEATURES)
    noise = np.random.default_rng(5).standard_normal([len(x), LATENT]).astype("float32")
    return same_for_all([x, y, noise], replicas)


def train(strategy, replicas, kind, seed=1, run_eagerly=False):
    """Train on data that is the same on all replicas; losses, weights, evaluation, prediction.

    Args:
        replicas: how many get the same data; the worker's own number is that of the strategy.
        kind: "gan", "vae" or "probe".
        seed: of the first worker; the others have other ones.
    """
    if strategy:
        use_rule(strategy, "adasum")
    rank = strategy.workers.rank if strategy else 0
    keras.utils.set_random_seed(seed + rank)
    x, y, noise = data_of(replicas)
    batch_size = 8 * replicas
    adam = keras.optimizers.Adam
    results = {}
    with scope(strategy):
        if kind == "gan":
            model = Gan()
            loss = keras.losses.BinaryCrossentropy(from_logits=True)
            model.compile(adam(0.01), adam(0.02), loss)
        elif kind == "vae":
            model = Vae()
            model.compile(optimizer=adam(0.01), run_eagerly=run_eagerly)
        else:
            model = Probe()
            model.compile(adam(0.01), optimizer=adam(0.02), loss="mse", metrics=["mae"])
    if kind == "probe":
        labelled = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
        unlabelled = tf.data.Dataset.from_tensor_slices(x[::-1].copy()).batch(batch_size)
        history = model.fit(tf.data.Dataset.zip((unlabelled, labelled)), epochs=3, verbose=0)
        results["evaluated"] = model.evaluate(labelled, verbose=0)
        results["predicted"] = model.predict(labelled, verbose=0)[:8]
    else:
        arguments = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
        validation = (x, noise) if kind == "vae" else None
        history = model.fit(x, noise, epochs=3, validation_data=validation, **arguments)
        if kind == "vae":
            results["predicted"] = model.predict(noise, batch_size=batch_size, verbose=0)[:8]
    results |= history.history
    variables = list(model.trainable_variables)
    results |= {f"weight{i}": variable.numpy() for i, variable in enumerate(variables)}
    if strategy:
        optimizers = keras_compat.optimizers_of(model)
        for number, variable in enumerate(
            [*variables, *(one for each in optimizers for one in keras_compat.all_variables(each))]
        ):
            for local, copy in enumerate(copies_of(strategy, variable)):
                results[f"copy {number}.{local}"] = copy.numpy()
    return results
