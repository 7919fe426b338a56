"""Last batches that leave replicas without rows."""

import functools
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from support import keras_versions
from support.keras_versions import copies_of

from scenarios.basics import OPTIMIZERS, random_data, scope, use_rule, weights_of
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


def build(normalization=True):
    """With an L2 loss, whose gradient needs no rows."""
    penalty = keras.regularizers.L2(0.1)
    layers = [keras.layers.Input([6]), keras.layers.Dense(4, kernel_regularizer=penalty)]
    layers += [keras.layers.BatchNormalization(momentum=0.5)] if normalization else []
    return keras.Sequential([*layers, keras.layers.Dense(1)])


def model_with_everything(strategy, optimizer="momentum", fit_mode="fit"):
    """Sparse and dense weights, frozen ones, a penalty, statistics, seeds and metrics."""
    keras.utils.set_random_seed(1)
    penalty = keras.regularizers.L2(0.1)
    layers = [
        *([] if fit_mode == "unbuilt" else [keras.layers.Input([3], dtype="int32")]),
        keras.layers.Embedding(50, 4, name="embedding"),
        keras.layers.Flatten(),
        keras.layers.Dense(4, name="frozen", trainable=False),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, kernel_regularizer=penalty, name="last"),
    ]
    with strategy.scope():
        model = keras.Sequential(layers)
        if fit_mode == "own step":
            model = OwnStep(model)
        model.compile(
            OPTIMIZERS[optimizer](),
            "mse",
            metrics=["mae"],
            steps_per_execution=2 if fit_mode == "executions" else 1,
            run_eagerly=fit_mode == "eagerly",
        )
    return model


def random_ids(rows):
    """Other ids and targets on every replica."""
    return np.random.default_rng(0).integers(0, 50, [rows, 3]), random_data(rows)[1]


def fit(strategy, rule, optimizer, fit_mode):
    """Batches of 8 rows per replica, then one of a single row; the weights are compared."""
    use_rule(strategy, rule)
    batch = 8 * strategy.num_replicas_in_sync
    ids, y = random_ids(2 * batch + 1)
    model = model_with_everything(strategy, optimizer, fit_mode)
    options = {"epochs": 2, "shuffle": False, "callbacks": [ReplicaCheck(check_freq=1)]}
    with mock.patch.object(strategy, "_check_model", wraps=strategy._check_model) as check:
        logs = model.fit(ids, y, batch_size=batch, verbose=0, **options).history
    strategy.check_replicas()
    slots = keras_compat.all_variables(model.optimizer)
    return {
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


def steps_of_loop(strategy, rule, optimizer="momentum", function=False):
    """Two steps of a custom loop: all replicas have the same rows, then only the first has rows.

    Args:
        strategy: the workers' strategy, or one of a single replica.
        rule: the rule's name.
        optimizer: a name in OPTIMIZERS.
        function: whether `strategy.run` gets a tf.function, instead of being called in one.

    Returns:
        All variables after each step, with the local replicas as their first dimension.
    """
    use_rule(strategy, rule)
    keras.utils.set_random_seed(7)
    x, y = random_data(16)
    with strategy.scope():
        model = build()
        model_optimizer = OPTIMIZERS[optimizer]()
        keras_compat.build(model_optimizer, model.trainable_variables)

    def in_replica(x, y):
        with tf.GradientTape() as tape:
            losses = tf.square(model(x, training=True) - y)
            loss = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(losses), "float32"))
            scaled = keras_versions.scale_loss(model_optimizer, loss + sum(model.losses))
        gradients = tape.gradient(scaled, model.trainable_variables)
        keras_compat.apply(model_optimizer, gradients, model.trainable_variables)

    if function:
        in_replica = tf.function(in_replica, reduce_retracing=True)
    run = lambda args: strategy.run(in_replica, args=args)  # noqa: E731
    if not function:
        run = tf.function(run, reduce_retracing=True)
    results = {}
    for step in (0, 1):

        def own_rows(context, step=step):
            is_first = context.replica_id_in_sync_group == 0
            count = 8 if is_first or step == 0 else 0
            return tuple(tf.constant(part[8 * step : 8 * step + count]) for part in (x, y))

        run(strategy.experimental_distribute_values_from_function(own_rows))
        results |= {
            f"{step} {index} {keras_compat.path_of(variable)}": np.stack(
                [copy.numpy() for copy in copies_of(strategy, variable)]
            )
            for index, variable in enumerate([*model.variables, *model_optimizer.variables])
        }
    return results


def train_convolutions(strategy, jit_compile=False):
    """Train on 9 rows in batches of 8; losses are sums over rows, the rule is that of replicas."""
    if strategy:
        use_rule(strategy, "sum")
    keras.utils.set_random_seed(5)
    generator = np.random.default_rng(5)
    x, y = generator.standard_normal([9, 10, 10, 2]), generator.standard_normal([9, 1])
    layers = keras.layers
    with scope(strategy):
        model = keras.Sequential(
            [
                layers.Input([10, 10, 2]),
                # Without rows, TensorFlow's fused kernel would return the shape of its inputs.
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.DepthwiseConv2D(3, padding="same"),
                layers.SeparableConv2D(4, 3, padding="same"),
                layers.Conv2DTranspose(4, 2, strides=2),
                layers.AveragePooling2D(2),
                layers.Reshape([16, 4]),
                layers.Conv1D(4, 3, strides=2),
                # Keras 3.11 and Keras 2 have no adaptive pooling.
                getattr(layers, "AdaptiveMaxPooling1D", layers.MaxPooling1D)(3),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        loss = keras.losses.MeanSquaredError(reduction="sum")
        model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=jit_compile)
    model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return weights_of(model)


def graphs(edges):
    """Yield graphs with four nodes each, and the targets of their nodes; each fourth has no edges.

    Args:
        edges: the name of the input with the edges.
    """
    for index in range(16):
        generator = np.random.default_rng(index)
        nodes = np.float32(generator.normal(size=(4, 3)))
        pairs = np.int32(generator.integers(0, 4, (3 * (index % 4 != 1), 2)))
        yield {"nodes": nodes, edges: pairs}, np.float32(generator.normal(size=(4, 1)))


class GraphModel(keras.Model):
    """Add to each node its neighbours, and apply a dense layer."""

    def __init__(self, edges):
        super().__init__()
        self.edges, self.dense = edges, keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs):
        nodes, edges = inputs["nodes"], inputs[self.edges]
        neighbours = tf.gather(nodes, edges[:, 0])
        return self.dense(
            nodes + tf.math.unsorted_segment_sum(neighbours, edges[:, 1], tf.shape(nodes)[0])
        )


def train_on_graphs(strategy, edges):
    """Return the weights after an epoch in which each replica gets one graph in a step."""
    use_rule(strategy, "mean")
    spec = {"nodes": tf.TensorSpec([None, 3]), edges: tf.TensorSpec([None, 2], tf.int32)}
    spec = spec, tf.TensorSpec([None, 1])
    with strategy.scope():
        model = GraphModel(edges)
        model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(
        strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.from_generator(
                functools.partial(graphs, edges), output_signature=spec
            )
        ),
        steps_per_epoch=16 // strategy.num_replicas_in_sync,  # Keras 2 asks for it
        verbose=0,
    )
    return weights_of(model)
