"""What `fit` promises on one device: loss scaling, dropout, shuffling, statistics, executions."""

import keras
import numpy as np
import tensorflow as tf
from support import stacks
from support.stacks import LossScaleOptimizer, Variable, copies_of, loss_scale_of

from scenarios.basics import build_mlp, random_data, scope, use_rule, weights_of
from tf_adasum.compat import keras as keras_compat


def worker_of(strategy):
    return strategy.cluster_resolver.task_id or 0 if strategy.cluster_resolver else 0


class Recorder(keras.callbacks.Callback):
    """A callback that calls a function after every step, and keeps what it returns."""

    def __init__(self, read):
        super().__init__()
        self.read, self.values = read, []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(self.read())


def overflow_on_one_replica(strategy, poisoned_replica):
    """Mixed float16; in the second of four steps one replica's rows are too large for it."""
    use_rule(strategy, "adasum")
    keras.utils.set_random_seed(1)
    replicas = strategy.num_replicas_in_sync
    x, y = random_data(4 * 8 * replicas)
    if poisoned_replica is not None:
        x[8 * replicas + 8 * poisoned_replica] = 6e4
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with scope(strategy):
            model = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(1)])
            # A scale of which only the poisoned rows make too much.
            optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0)
            model.compile(optimizer=optimizer, loss="mse")

        def read():
            return [
                loss_scale_of(optimizer).numpy(),
                optimizer.iterations.numpy(),
                *(weight.astype("float64").sum() for weight in model.get_weights()),
            ]

        recorder = Recorder(read)
        model.fit(x, y, batch_size=8 * replicas, shuffle=False, verbose=0, callbacks=[recorder])
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return {"steps": np.array(recorder.values, "float64"), **weights_of(model)}


def dropout_masks(strategy, seed):
    """The masks of two calls, of every local replica."""
    with scope(strategy):
        dropout = keras.layers.Dropout(0.5, seed=seed)
        dropout.build([1, 64])

    @tf.function
    def drop():
        return strategy.run(lambda: dropout(tf.ones([1, 64]), training=True))

    calls = [strategy.experimental_local_results(drop()) for _ in range(2)]
    return {"masks": np.array([[mask.numpy()[0] > 0 for mask in call] for call in calls])}


class SeenRows(keras.layers.Layer):
    """Passes its input on, and remembers its first column."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def call(self, x):
        def remember(rows):
            self.rows.extend(rows.ravel().astype(int).tolist())
            return rows

        return tf.ensure_shape(tf.numpy_function(remember, [x], tf.float32), x.shape)


def shuffled_rows(strategy, seeds, rows=96):
    """The rows that this worker sees in each epoch of two shuffled fits, of two epochs each.

    Args:
        seeds: "none", "same", or "different" global seeds on the workers.
    """
    use_rule(strategy, "adasum")
    tf.random.set_seed({"none": None, "same": 5, "different": worker_of(strategy)}[seeds])
    x = np.arange(rows, dtype="float32")[:, None]
    with scope(strategy):
        seen = SeenRows()
        model = keras.Sequential([keras.layers.Input([1]), seen, keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    by_epoch = []

    class NextEpoch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            by_epoch.append(list(seen.rows))
            seen.rows.clear()

    for _ in range(2):
        model.fit(x, x, batch_size=32, epochs=2, verbose=0, callbacks=[NextEpoch()])
    return {"epochs": np.array(by_epoch)}


def local_batch_normalization(strategy):
    """One epoch with a BatchNormalization that is not synchronized; momentum 0: the last batch."""
    use_rule(strategy, "adasum")
    keras.utils.set_random_seed(3)
    batch = 8 * strategy.num_replicas_in_sync
    x, y = random_data(2 * batch)
    with scope(strategy):
        frozen = keras.layers.Dense(6, trainable=False)
        normalization = keras.layers.BatchNormalization(momentum=0.0)
        model = keras.Sequential(
            [keras.layers.Input([6]), normalization, frozen, keras.layers.Dense(1)]
        )
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    before = frozen.kernel.numpy()
    history = model.fit(
        x, y, batch_size=batch, shuffle=False, verbose=0, validation_data=(x, y)
    ).history
    copies = {
        f"{name}.{local}": copy.numpy()
        for name in ("moving_mean", "moving_variance")
        for local, copy in enumerate(copies_of(strategy, getattr(normalization, name)))
    }
    alone = keras.Sequential(
        [
            keras.layers.Input([6]),
            keras.layers.BatchNormalization(momentum=0.0),
            keras.layers.Dense(6),
            keras.layers.Dense(1),
        ]
    )
    for own, layer in zip(alone.layers, model.layers, strict=True):
        own.set_weights(layer.get_weights())
    alone.compile(loss="mse")
    return {
        "x": x,
        "frozen before": before,
        "frozen after": frozen.kernel.numpy(),
        "val_loss": history["val_loss"],
        "val_loss alone": alone.evaluate(x, y, batch_size=batch, verbose=0),
        "predicted": model.predict(x, batch_size=batch, verbose=0),
        "predicted alone": alone.predict(x, batch_size=batch, verbose=0),
        **copies,
    }


def fit_in_executions(strategy, steps_per_execution, **options):
    """Adam on shuffled rows, with metrics and a synchronized BatchNormalization."""
    use_rule(strategy, "adasum")
    keras.utils.set_random_seed(4)
    x, y = random_data(16 * 7)
    with scope(strategy):
        layers = [keras.layers.Input([6]), keras.layers.Dense(8, activation="tanh")]
        layers += [keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(
            optimizer=keras.optimizers.Adam(0.01),
            loss="mse",
            metrics=["mae"],
            steps_per_execution=steps_per_execution,
            **options,
        )
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x, y)).history
    return {
        **{name: history[name] for name in ("loss", "mae", "val_loss")},
        "iterations": model.optimizer.iterations.numpy(),
        "evaluated": model.evaluate(x, y, batch_size=16, verbose=0),
        "predicted": model.predict(x, batch_size=16, verbose=0),
        **weights_of(model),
    }


def uneven_datasets(strategy, unknown):
    """Worker 0 has three batches, the others have one; return the error's message."""
    use_rule(strategy, "adasum")
    batches = 3 if worker_of(strategy) == 0 else 1
    x, y = random_data(8 * batches)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    if unknown:
        dataset = dataset.filter(lambda *row: True)
    with scope(strategy):
        model = build_mlp()
        model.compile(optimizer="sgd", loss="mse")
    try:
        history = model.fit(dataset.with_options(options), verbose=0).history
    except ValueError as error:
        return {"message": str(error)}
    return {"message": "", "loss": history["loss"]}


def count_traces(strategy):
    """How often the model's code has run after one epoch, and after three."""
    use_rule(strategy, "adasum")
    counts = []

    class Counting(keras.layers.Layer):
        def call(self, x):
            counts.append(1)
            return x

    x, y = random_data(16 * 4)
    with scope(strategy):
        layers = [keras.layers.Input([6]), Counting(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(optimizer="sgd", loss="mse")
    model.fit(x, y, batch_size=16, verbose=0)
    after_one = len(counts)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return {"counts": [after_one, len(counts)]}


def learning_rates(strategy):
    """A schedule by step; a callback that halves the rate when the loss stands still."""
    use_rule(strategy, "adasum")
    x, y = random_data(16 * 2)
    rates = {}
    with scope(strategy):
        scheduled = build_mlp()
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        scheduled.compile(optimizer=keras.optimizers.SGD(schedule), loss="mse")
        still = build_mlp()
        still.compile(optimizer=keras.optimizers.SGD(0.1), loss=lambda y, p: 0 * p)
    recorder = Recorder(lambda: keras_compat.floating(scheduled.optimizer.learning_rate).numpy())
    scheduled.fit(x, y, batch_size=16, epochs=2, verbose=0, callbacks=[recorder])
    rates["scheduled"] = recorder.values
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1)
    history = still.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=[plateau]).history
    rates["plateau"] = history.get("learning_rate") or history["lr"]  # as Keras 2 calls it
    return rates


def fit_in_precision(strategy, policy):
    """Losses of a short training under a dtype policy."""
    use_rule(strategy, "adasum")
    keras.utils.set_random_seed(5)
    x, y = random_data(64)
    keras.mixed_precision.set_global_policy(policy)
    try:
        with scope(strategy):
            model = build_mlp()
            model.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
        history = model.fit(x, y, batch_size=32, epochs=8, verbose=0).history
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return {"loss": history["loss"], **weights_of(model)}


def sparse_gradients(strategy):
    """One SGD step on an embedding: repeated indices, another number of rows on each replica."""
    use_rule(strategy, "adasum")
    slices = known_slices(strategy.num_replicas_in_sync)
    with scope(strategy):
        table = Variable(np.zeros([6, 2], "float32"), name="table")
        optimizer = keras.optimizers.SGD(1.0)
        keras_compat.build(optimizer, [table])

    @tf.function
    def step():
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            indices = tf.gather(tf.ragged.constant([i for i, _ in slices]), replica)
            values = tf.gather(tf.ragged.constant([v for _, v in slices], ragged_rank=1), replica)
            gradient = tf.IndexedSlices(tf.cast(values, tf.float32), indices, tf.constant([6, 2]))
            keras_compat.apply(optimizer, [gradient], [table])

        strategy.run(in_replica)

    step()
    return {"table": table.numpy()}


def known_slices(replicas):
    """For each replica the indices and rows of its gradient; the last one has none."""
    random = np.random.default_rng(6)
    slices = []
    for replica in range(replicas):
        rows = 0 if replica == replicas - 1 else 3 + replica
        indices = random.integers(0, 4, rows).tolist()
        slices.append((indices, random.standard_normal([rows, 2]).tolist()))
    return slices


def gradient_missing_on_one_replica(strategy):
    """Replica 1 has no gradient for the second variable; return the error's message."""
    use_rule(strategy, "adasum")
    with scope(strategy):
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


def average_known_statistics(strategy):
    """The average of weights that are given: per element numbers, infinities, and a NaN."""

    class Statistics(keras.layers.Layer):
        def build(self, shape):
            self.moving = self.add_weight(shape=[5], trainable=False, name="moving")
            self.steps = self.add_weight(shape=[], dtype="int32", trainable=False, name="steps")
            self.flag = self.add_weight(shape=[2], dtype="bool", trainable=False, name="flag")
            self.total = self.add_weight(
                shape=[],
                initializer="ones",
                trainable=False,
                aggregation=tf.VariableAggregation.SUM if stacks.IS_KERAS_2 else "sum",
                name="total",
            )

        def call(self, x):
            return x

    with scope(strategy):
        layer = Statistics()
        model = keras.Sequential([keras.layers.Input([3]), layer])

    @tf.function
    def differ():
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            number = tf.cast(replica, tf.float32)
            first_is_nan = tf.where(replica == 0, np.nan, number)
            layer.moving.assign([number, 0.1, -np.inf, np.inf, first_is_nan])

        strategy.run(in_replica)

    differ()
    strategy.average_statistics(model)
    copies = copies_of(strategy, layer.moving)
    return {"copies": np.stack([copy.numpy() for copy in copies]), "total": layer.total.numpy()}
