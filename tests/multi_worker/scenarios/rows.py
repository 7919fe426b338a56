"""Last batches that leave replicas without rows."""

import keras
import numpy as np
import tensorflow as tf
from support import stacks
from support.stacks import LossScaleOptimizer

from scenarios.basics import random_data, scope, use_rule, weights_of
from tf_adasum import optimizers
from tf_adasum.compat import keras as keras_compat


class OwnStep(keras.Model):
    """A train_step of the user's."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=None):
        return self.inner(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        keras_compat.apply(self.optimizer, gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.shape(x)[0])
            else:
                metric.update_state(y, self(x))
        return {metric.name: metric.result() for metric in self.metrics}


class Tracking(keras.Model):
    """Steps with a tracker of the mean over the rows, which is NaN without rows."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        x, y = data
        self.tracker.update_state(tf.reduce_mean(tf.square(self(x) - y)))
        return {"tracked": self.tracker.result()}


def tracked(strategy):
    """What a tracker says of batches of 8 rows per replica, and one of a single row."""
    keras.utils.set_random_seed(4)
    replicas = strategy.num_replicas_in_sync
    x, y = random_data(2 * 8 * replicas + 1)
    with strategy.scope():
        model = Tracking()
        model.compile()
    (value,) = model.evaluate(x, y, batch_size=8 * replicas, return_dict=True, verbose=0).values()
    return {"tracked": value, "errors": model.predict(x, verbose=0) - y}


def build(normalization=True):
    """With an L2 loss, whose gradient needs no rows."""
    layers = [
        keras.layers.Input([6]),
        keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.1)),
    ]
    layers += [keras.layers.BatchNormalization(momentum=0.5)] if normalization else []
    return keras.Sequential([*layers, keras.layers.Dense(1)])


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "scaled": lambda: LossScaleOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=64.0
    ),
    "delta": lambda: optimizers.DeltaAdasum(keras.optimizers.Adam(0.01)),
    "delta of 2": lambda: optimizers.DeltaAdasum(
        keras.optimizers.AdamW(0.01, weight_decay=0.1), local_steps=2
    ),
    "adascale": lambda: optimizers.AdaScale(keras.optimizers.SGD(0.05)),
}


def fit(strategy, rule, optimizer="momentum", way="fit", epochs=2):
    """Batches of 8 rows per replica, then one of a single row."""
    use_rule(strategy, rule)
    keras.utils.set_random_seed(4)
    replicas = strategy.num_replicas_in_sync
    x, y = random_data(2 * 8 * replicas + 1)
    with strategy.scope():
        model = build()
        if way == "own step":
            model = OwnStep(model)
        model.compile(
            OPTIMIZERS[optimizer](),
            "mse",
            metrics=["mae"],
            steps_per_execution=2 if way == "executions" else 1,
            run_eagerly=way == "eagerly",
        )
    logs = model.fit(x, y, batch_size=8 * replicas, epochs=epochs, shuffle=False, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=8 * replicas, verbose=0)
    own = keras_compat.all_variables(model.optimizer)
    return {
        **{f"log {name}": values for name, values in logs.items()},
        "evaluated": evaluated,
        **{f"weight{index}": value for index, value in enumerate(model.get_weights())},
        **{
            f"slot{index}": v.numpy()
            for index, v in enumerate(own)
            if "rng" not in keras_compat.path_of(v)
        },
        "iterations": model.optimizer.iterations.numpy(),
    }


def one_step(strategy, rule, rows, optimizer="momentum", function=False, normalization=True):
    """A step of a custom loop in which each replica has its own number of rows.

    Args:
        strategy: the workers' strategy.
        rule: the rule's name.
        rows: for each replica how many.
        optimizer: a name in OPTIMIZERS.
        function: whether `strategy.run` gets a tf.function, instead of being called in one.
        normalization: whether there is a BatchNormalization.

    Returns:
        The data, the weights before, and weights, slots and losses of every local replica.
    """
    use_rule(strategy, rule)
    keras.utils.set_random_seed(7)
    x, y = random_data(8 * len(rows))

    def batches(step):
        def own(context):
            replica = int(context.replica_id_in_sync_group)
            # The first step has rows for all: momentum is there when the second comes.
            count = 8 if step == 0 else rows[replica]
            start = 8 * replica
            return tuple(tf.constant(part[start : start + count]) for part in (x, y))

        return strategy.experimental_distribute_values_from_function(own)

    with strategy.scope():
        model = build(normalization)
        model_optimizer = OPTIMIZERS[optimizer]()
        keras_compat.build(model_optimizer, model.trainable_variables)

    def in_replica(x, y):
        with tf.GradientTape() as tape:
            losses = tf.square(model(x, training=True) - y)
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(losses), "float32"))
            loss += sum(model.losses)
            scaled = stacks.scale_loss(model_optimizer, loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        keras_compat.apply(model_optimizer, gradients, model.trainable_variables)
        return loss

    if function:
        traced = tf.function(in_replica, reduce_retracing=True)
        run = lambda args: strategy.run(traced, args=args)  # noqa: E731
    else:
        run = tf.function(lambda args: strategy.run(in_replica, args=args), reduce_retracing=True)
    local = strategy.experimental_local_results

    def copies(kind, variables):
        return {
            f"{kind} {index} {keras_compat.path_of(variable)}.{replica}": copy.numpy()
            for index, variable in enumerate(variables)
            for replica, copy in enumerate(local(keras_compat.tensorflow_variable(variable)))
        }

    results = {}
    for step in (0, 1):
        losses = run(batches(step))
        results |= copies(f"{step} weight", model.variables)
        results |= copies(f"{step} slot", model_optimizer.variables)
        results[f"{step} loss"] = [loss.numpy() for loss in local(losses)]
    return results


def logs(strategy):
    """What `fit` says of a model that does not learn, the last batch being one row."""
    use_rule(strategy, "adasum")
    replicas = strategy.num_replicas_in_sync
    x, y = random_data(2 * 8 * replicas + 1)
    keras.utils.set_random_seed(4)
    with strategy.scope():
        model = build(normalization=False)
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    return model.fit(x, y, batch_size=8 * replicas, shuffle=False, verbose=0).history


def train_convolutions(strategy, jit_compile=False):
    """Train on 9 rows in batches of 8; losses are sums over rows, the rule is that of replicas."""
    if strategy:
        use_rule(strategy, "sum")
    keras.utils.set_random_seed(5)
    generator = np.random.default_rng(5)
    x, y = generator.standard_normal([9, 8, 8, 2]), generator.standard_normal([9, 1])
    layers = keras.layers
    with scope(strategy):
        model = keras.Sequential(
            [
                layers.Input([8, 8, 2]),
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.DepthwiseConv2D(3, padding="same"),
                layers.SeparableConv2D(4, 3, padding="same"),
                layers.Conv2DTranspose(4, 2, strides=2),
                layers.AveragePooling2D(2),
                layers.Reshape([16, 4]),
                layers.Conv1D(4, 3, strides=2),
                layers.MaxPooling1D(),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=jit_compile)
    model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return weights_of(model)
