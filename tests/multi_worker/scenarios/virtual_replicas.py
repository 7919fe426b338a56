"""Trainings with virtual replicas on different numbers of devices."""

import contextlib

import keras
import numpy as np
from sklearn.datasets import load_digits

import tf_adasum
from scenarios.basics import compiled, random_data, weights_of
from scenarios.callbacks import Interrupted

ROWS, FEATURES = 4, 6


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "lamb": lambda: tf_adasum.optimizers.LAMB(0.01),
    "delta": lambda: tf_adasum.optimizers.DeltaAdasum(tf_adasum.optimizers.LAMB(0.01)),
    # The first steps of its bias cancel: adasum(c, -c, b) depends on the last bit, and on the plan.
    "nadam": lambda: tf_adasum.optimizers.DeltaAdasum(keras.optimizers.Nadam(0.01)),
}


class Words(keras.layers.Layer):
    """Looks numbers up in an embedding, whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(40, 3)

    def call(self, x):
        found = self.embedding(keras.ops.cast(keras.ops.abs(x) * 10, "int32"))
        return keras.ops.reshape(found, [-1, 3 * FEATURES])


def model_of(strategy, optimizer, *layers):
    def make():
        hidden = [*(layer() for layer in layers), keras.layers.Dropout(0.2, seed=2)]
        return [keras.Input([FEATURES]), *hidden, keras.layers.Dense(1)]

    return compiled(strategy, make, OPTIMIZERS[optimizer], metrics=["mae"], jit_compile=False)


def train(strategy, optimizer="sgd", steps=10, sparse=False):
    """The weights, the moving statistics and the logs of a training in `fit`."""
    replicas = strategy.num_virtual_replicas
    x, y = random_data(ROWS * replicas * steps)
    # The gradient of a bias before a BatchNormalization is a rounding error; Adam scales it up.
    dense = [lambda: keras.layers.Dense(12, use_bias=False), keras.layers.BatchNormalization]
    model = model_of(strategy, optimizer, *([Words] if sparse else dense))
    options = {"batch_size": ROWS * replicas, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=1, **options).history
    strategy.average_statistics(model)
    strategy.check_replicas()
    return {**weights_of(model), **history}


def on_parts_of_the_devices(strategy, replicas, numbers, **arguments):
    """Train with as many real replicas, and with virtual replicas on fewer devices."""
    del strategy
    found = {}
    for number in (replicas, *numbers):
        devices = [f"CPU:{index}" for index in range(number)]
        plan = [2] * 3 if number == replicas and arguments["optimizer"] == "nadam" else None
        own = tf_adasum.AdasumMirroredStrategy(devices, virtual_replicas=replicas, radix_plan=plan)
        found |= {f"{number} {name}": each for name, each in train(own, **arguments).items()}
    return found


class InterruptAt(keras.callbacks.Callback):
    """Raises an error after so many updates of all trainings together."""

    def __init__(self, update):
        super().__init__()
        self.update = update

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.update:
            raise Interrupted


def train_until(strategy, folder, update, optimizer="momentum", steps=6, epochs=4):
    """Resume from the backup, and train until an update; the weights if the training ends."""
    replicas = strategy.num_virtual_replicas
    x, y = random_data(ROWS * replicas * steps)
    model = model_of(strategy, optimizer, lambda: keras.layers.Dense(12, activation="tanh"))
    backup = tf_adasum.callbacks.BackupAndRestore(folder, save_freq=1, delete_checkpoint=False)
    options = {"batch_size": ROWS * replicas, "epochs": epochs, "verbose": 0}
    with contextlib.suppress(Interrupted):
        model.fit(x, y, callbacks=[backup, InterruptAt(update)], **options)
    strategy.check_replicas()
    return {**weights_of(model), "updates": int(model.optimizer.iterations.numpy())}


def accuracies(strategy, folder, rows, update, jobs, epochs=8):
    """Resume each job from its backup, train on digits to an update; the test accuracies."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.images[order, ..., None] / 16.0, digits.target[order]
    with strategy.scope():
        layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Flatten()]
        layers += [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input([8, 8, 1]), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=False)
    options = {"batch_size": rows * strategy.num_virtual_replicas, "epochs": epochs, "verbose": 0}
    found = []
    for job in range(jobs):
        keras.utils.set_random_seed(job)
        model.set_weights(keras.models.clone_model(model).get_weights())
        model.optimizer.iterations.assign(0)
        backup = tf_adasum.callbacks.BackupAndRestore(
            f"{folder}-{job}", save_freq=15, delete_checkpoint=False
        )
        with contextlib.suppress(Interrupted):
            model.fit(x[257:], y[257:], callbacks=[backup, InterruptAt(update)], **options)
        found.append(model.evaluate(x[:257], y[:257], batch_size=256, verbose=0)[1])
    return {"accuracy": found}
