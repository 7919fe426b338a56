"""What `fit` promises on one device: dropout, shuffling, statistics."""

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import Variable, copies_of

from scenarios.basics import random_data, use_rule
from tf_adasum.compat import keras as keras_compat


def dropped_units(strategy, jit_compile):
    """Each replica's mask of one dropout, of 64 units of its own, from two equal trainings."""
    use_rule(strategy, "adasum")
    replicas = strategy.num_replicas_in_sync
    # Replica r's row has ones in block r alone, so no gradient shares an element with another.
    x = np.repeat(np.eye(replicas, dtype="float32"), 64, axis=1)
    masks = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        with strategy.scope():
            layers = [keras.layers.Input(x.shape[1:]), keras.layers.Dropout(0.5)]
            layers += [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
        model.fit(x, np.ones([replicas, 1]), batch_size=replicas, shuffle=False, verbose=0)
        masks.append(model.get_weights()[0].reshape(replicas, 64) != 0)
    return {"masks": np.array(masks)}


class SeenRows(keras.layers.Layer):
    """Passes its input on, and remembers the rows of each step."""

    def __init__(self, only_training=False):
        super().__init__()
        self.only_training, self.steps = only_training, []

    @tf.autograph.experimental.do_not_convert
    def call(self, x, training=False):
        if self.only_training and not training:
            return x

        def remember(rows):
            self.steps.append(rows.ravel().astype(int).tolist())
            return rows

        return tf.ensure_shape(tf.numpy_function(remember, [x], tf.float32), x.shape)


class RowsByEpoch(keras.callbacks.Callback):
    """Keeps the rows that a `SeenRows` sees in each epoch."""

    def __init__(self, seen):
        super().__init__()
        self.seen, self.epochs = seen, []
        seen.steps.clear()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append([row for step in self.seen.steps for row in step])
        self.seen.steps.clear()


def shuffled_rows(strategy, seeds):
    """The rows that this worker sees in each epoch of two shuffled fits, of two epochs each.

    Args:
        seeds: "none", "same", or "different" global seeds on the workers.
    """
    use_rule(strategy, "adasum")
    tf.random.set_seed({"none": None, "same": 5, "different": strategy.rank}[seeds])
    x = np.arange(96, dtype="float32")[:, None]
    with strategy.scope():
        seen = SeenRows()
        model = keras.Sequential([keras.layers.Input([1]), seen, keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    recorder = RowsByEpoch(seen)
    for _ in range(2):
        model.fit(x, x, batch_size=32, epochs=2, verbose=0, callbacks=[recorder])
    return {"epochs": np.array(recorder.epochs)}


def local_batch_normalization(strategy):
    """One epoch with a BatchNormalization that is not synchronized; momentum 0: the last batch."""
    use_rule(strategy, "adasum")
    keras.utils.set_random_seed(3)
    batch = 8 * strategy.num_replicas_in_sync
    x, y = random_data(2 * batch)

    def build():
        normalization = keras.layers.BatchNormalization(momentum=0.0)
        layers = [keras.layers.Dense(6, trainable=False), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input([6]), normalization, *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        return model, normalization

    with strategy.scope():
        model, normalization = build()
    before = model.layers[1].kernel.numpy()
    options = {"batch_size": batch, "verbose": 0}
    history = model.fit(x, y, shuffle=False, validation_data=(x, y), **options).history
    alone, _ = build()
    alone.set_weights(model.get_weights())
    return {
        "x": x,
        "frozen before": before,
        "frozen after": model.layers[1].kernel.numpy(),
        "val_loss": history["val_loss"],
        "val_loss alone": alone.evaluate(x, y, **options),
        "predicted": model.predict(x, **options),
        "predicted alone": alone.predict(x, **options),
        **{
            f"{name}.{local}": copy.numpy()
            for name in ("moving_mean", "moving_variance")
            for local, copy in enumerate(copies_of(strategy, getattr(normalization, name)))
        },
    }


def count_traces(strategy):
    """How often the model's code has run after one epoch, and after three."""
    use_rule(strategy, "adasum")
    counts = []

    class Counting(keras.layers.Layer):
        def call(self, x):
            counts.append(1)
            return x

    x, y = random_data(16 * 4)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([6]), Counting(), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    model.fit(x, y, batch_size=16, verbose=0)
    after_one = len(counts)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return {"counts": [after_one, len(counts)]}


def gradient_missing_on_one_replica(strategy):
    """Replica 1 has no gradient for the second variable; return the error's message."""
    use_rule(strategy, "adasum")
    with strategy.scope():
        variables = [Variable(np.zeros(size, "float32")) for size in (3, 4)]
        optimizer = keras.optimizers.SGD(1.0)
        keras_compat.build(optimizer, variables)

    @tf.function
    def step():
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            missing = tf.get_static_value(replica) == 1
            keras_compat.apply(optimizer, [tf.ones(3), None if missing else tf.ones(4)], variables)

        strategy.run(in_replica)

    try:
        step()
    except ValueError as error:
        return {"message": str(error)}
    return {"message": ""}
