"""What `fit` promises on one device: dropout, shuffling, statistics."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import compiled, message_of, random_data


def dropped_units(strategy, jit_compile):
    """Each replica's mask of one dropout, of 64 units of its own, from two equal trainings."""
    replicas = strategy.num_replicas_in_sync
    # Replica r's row has ones in block r alone, so no gradient shares an element with another.
    x = np.repeat(np.eye(replicas, dtype="float32"), 64, axis=1)
    masks = []

    def make():
        last = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        return [keras.layers.Input(x.shape[1:]), keras.layers.Dropout(0.5), last]

    for _ in range(2):
        model = compiled(strategy, make, seed=7, jit_compile=jit_compile)
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


def count_traces(strategy):
    """How often the model's code has run after one epoch, and after three."""
    counts = []

    class Counting(keras.layers.Layer):
        def call(self, x):
            counts.append(1)
            return x

    x, y = random_data(16 * 4)
    model = compiled(strategy, lambda: [keras.layers.Input([6]), Counting(), keras.layers.Dense(1)])
    model.fit(x, y, batch_size=16, verbose=0)
    after_one = len(counts)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return {"counts": [after_one, len(counts)]}


def beside_fit(strategy):
    """The error of gradients that XLA would reduce; a loss under TensorFlow's strategy and ours."""
    from keras.src.losses import loss as losses  # of Keras 3

    @tf.function(jit_compile=True)
    def compiled_step():
        def in_replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [tf.ones([3])], options=strategy.gradient_reduction)

        return strategy.run(in_replica)

    results = {"message": message_of(compiled_step)}
    stock = tf.distribute.MirroredStrategy(strategy.extended.worker_devices)
    for name, own in ("stock", stock), ("ours", strategy):
        with own.scope():
            scales = losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution
            results[name] = [float(scale(tf.constant(6.0))) for scale in scales]
    return results
