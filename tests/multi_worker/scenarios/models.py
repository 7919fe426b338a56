"""What workers do for test_models.py: models of several kinds, inputs of several kinds.

Every function takes the strategy first; `None` is one process without any.
"""

import keras
import numpy as np
import tensorflow as tf
from support.stacks import PyDataset, Variable, copies_of

from scenarios.basics import build_mlp, random_data, scope, weights_of
from tf_adasum.compat import keras as keras_compat


def all_copies(strategy, model):
    """Every local replica's copy of every variable of a trained model and its optimizer."""
    return {
        f"copy {number}.{local}": copy.numpy()
        for number, variable in enumerate(
            model.variables + keras_compat.all_variables(model.optimizer)
        )
        for local, copy in enumerate(copies_of(strategy, variable))
    }


# ---- what Keras tests of a distribution strategy -----------------------------------------------


def make_variables(strategy):
    """How variables are mirrored, aggregated and synchronized."""
    with scope(strategy):
        dense = keras.layers.Dense(2)
        dense.build([4, 2])
        plain = Variable(np.ones([4, 4]))
        summed = Variable(np.ones([4, 4]), aggregation="sum")
        on_read = Variable(np.ones([4, 4]), synchronization="on_read")
        seed = keras.random.SeedGenerator(42)
    states = strategy.experimental_local_results(strategy.run(lambda: seed.state.value))
    return {
        "classes": [type(variable.value).__name__ for variable in dense.variables],
        "copies": len(copies_of(strategy, dense.kernel)),
        "aggregations": [variable.value.aggregation.name for variable in (plain, summed)],
        "synchronizations": [variable.value.synchronization.name for variable in (plain, on_read)],
        "seeds": np.stack([state.numpy() for state in states]),
    }


def call_in_replicas(strategy):
    """Outputs of a model whose input is the number of the replica."""
    with scope(strategy):
        inputs = keras.layers.Input([4])
        ones = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
        model = keras.Model(inputs, ones(inputs))
    distributed = strategy.experimental_distribute_values_from_function(
        lambda context: tf.fill([8, 4], float(context.replica_id_in_sync_group))
    )
    outputs = strategy.run(tf.function(model), args=(distributed,))
    local = strategy.experimental_local_results(outputs)
    return {"outputs": np.stack([output.numpy() for output in local])}


def iterate_over_epoch(strategy, rows, batch_size):
    """The rows that each local replica gets in each step of one epoch."""
    numbers = np.arange(rows)
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    iterator = TFEpochIterator(
        x=numbers[:, None],
        y=numbers[:, None],
        sample_weight=numbers,
        batch_size=batch_size,
        shuffle=False,
        distribute_strategy=strategy,
    )
    results = {}
    for step, _, batches in iterator:
        x, y, weight = map(strategy.experimental_local_results, next(batches))
        for local in range(len(x)):
            results[f"{step}.{local}"] = x[local][:, 0].numpy()
            np.testing.assert_array_equal(y[local][:, 0], x[local][:, 0])
            np.testing.assert_array_equal(weight[local], x[local][:, 0])
    return results


def rows_of_shuffled_epoch(strategy, rows, batch_size):
    """How often `fit`, shuffling on workers with different seeds, saw each row."""
    tf.random.set_seed(None)
    keras.backend.clear_session()  # forgets the seeds that earlier scenarios set
    with scope(strategy):
        inputs = keras.layers.Input([rows])
        seen = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Model(inputs, seen(inputs))
        # Each row's gradient has only its own place: with Adasum they add up.
        model.compile(optimizer=keras.optimizers.SGD(-1.0), loss=lambda y, p: p[:, 0])
    identity = np.eye(rows, dtype="float32")
    model.fit(identity, np.zeros([rows, 1]), batch_size=batch_size, verbose=0)
    per_replica = batch_size // strategy.num_replicas_in_sync
    return {"seen": np.round(model.get_weights()[0][:, 0] * per_replica, 4)}


def apply_gradients(strategy):
    """Weights after gradients that are the same on all replicas, with all that SGD can do."""
    with scope(strategy):
        options = {"momentum": 0.6, "nesterov": True, "weight_decay": 0.004, "clipnorm": 1.0}
        optimizer = keras.optimizers.SGD(0.5, **options)
        variables = [Variable(np.ones([10]), name=name) for name in ("decays", "excluded")]
        optimizer.exclude_from_weight_decay(var_names=["excluded"])
        keras_compat.build(optimizer, variables)

    def update():
        gradients = [tf.range(0.1, 1.1, 0.1), tf.fill([10], 0.01)]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for _ in range(3):
        strategy.run(update) if strategy else update()
    return {variable.name: variable.numpy() for variable in variables}


def fit_with_regularizer(strategy):
    """One step on ones, which every replica has the same of."""
    with scope(strategy):
        inputs = keras.layers.Input([1])
        dense = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer="ones",
            kernel_regularizer=keras.regularizers.L1L2(l1=0.01, l2=0.01),
        )
        model = keras.Model(inputs, dense(inputs))
        model.compile(loss="mse", optimizer="sgd")
    history = model.fit(np.ones([12, 1]), np.zeros([12, 1]), batch_size=12, verbose=0).history
    return {"loss": history["loss"], **weights_of(model)}


def summarize(strategy):
    """The lines of `summary` of a trained model."""
    with scope(strategy):
        model = build_mlp()
        model.compile(optimizer="adam", loss="mse")
    model.fit(*random_data(16), batch_size=8, verbose=0)
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    return {"summary": "\n".join(lines)}


# ---- models of several kinds -------------------------------------------------------------------


def train_cnn(strategy):
    """Images with a bright row, column or corner; a synchronized BatchNormalization."""
    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(1)
    y = generator.integers(3, size=192)
    x = generator.standard_normal([192, 8, 8, 1]).astype("float32")
    x[y == 0, 3] += 2
    x[y == 1, :, 3] += 2
    x[y == 2, :3, :3] += 2
    with scope(strategy):
        model = keras.Sequential(
            [
                keras.layers.Input([8, 8, 1]),
                keras.layers.Conv2D(6, 3, use_bias=False),
                keras.layers.BatchNormalization(synchronized=True, momentum=0.8),
                keras.layers.ReLU(),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=5, verbose=0).history
    evaluated = model.evaluate(x, y, batch_size=32, verbose=0, return_dict=True)
    return {
        **history,
        "evaluated accuracy": evaluated["accuracy"],
        "moving variance": model.layers[1].moving_variance.numpy(),
        **all_copies(strategy, model),
    }


def train_transformer(strategy):
    """Is token 7 among eight tokens? An encoder of one block, with dropout."""
    keras.utils.set_random_seed(2)
    generator = np.random.default_rng(2)
    x = generator.integers(8, 20, size=[256, 8])
    y = generator.integers(2, size=256)
    x[np.arange(256), generator.integers(8, size=256)] = np.where(y, 7, 8)
    with scope(strategy):
        tokens = keras.layers.Input([8], dtype="int32")
        embedded = keras.layers.Embedding(20, 16)(tokens)
        attended = keras.layers.MultiHeadAttention(2, 8, dropout=0.1)(embedded, embedded)
        hidden = keras.layers.LayerNormalization()(keras.layers.Add()([embedded, attended]))
        hidden = keras.layers.Dropout(0.1)(keras.layers.Dense(16, activation="gelu")(hidden))
        pooled = keras.layers.GlobalMaxPooling1D()(hidden)
        model = keras.Model(tokens, keras.layers.Dense(1, activation="sigmoid")(pooled))
        optimizer = keras.optimizers.Adam(0.01)
        model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=64, epochs=8, verbose=0).history
    return {**history, **all_copies(strategy, model)}


def train_multi_task(strategy):
    """Two inputs, a layer that both share, a frozen layer, two outputs with their own metrics."""
    keras.utils.set_random_seed(3)
    left, right = (random_data(128, features=4, seed=seed)[0] for seed in (3, 4))
    total = (left + right).sum(axis=1, keepdims=True)
    with scope(strategy):
        inputs = {name: keras.layers.Input([4], name=name) for name in ("left", "right")}
        shared = keras.layers.Dense(8, activation="tanh")
        both = keras.layers.Concatenate()([shared(inputs["left"]), shared(inputs["right"])])
        frozen = keras.layers.Dense(12, activation="tanh", trainable=False)
        hidden = keras.layers.Concatenate()([both, frozen(both)])
        outputs = {
            "total": keras.layers.Dense(1, name="total")(hidden),
            "sign": keras.layers.Dense(1, activation="sigmoid", name="sign")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss={"total": "mse", "sign": "binary_crossentropy"},
            loss_weights={"total": 0.2, "sign": 2.0},
            metrics={"total": ["mae"], "sign": ["accuracy"]},
        )
    before = frozen.kernel.numpy()
    history = model.fit(
        {"left": left, "right": right},
        {"total": total, "sign": (total > 0).astype("float32")},
        batch_size=32,
        epochs=8,
        verbose=0,
    ).history
    frozen_change = np.abs(frozen.kernel.numpy() - before).max()
    return {**history, "frozen change": frozen_change, **all_copies(strategy, model)}


class CustomStepModel(keras.Model):
    """A subclassed model with a training step and a loss tracker of its own, and a spare layer.

    Nothing depends on the spare layer: its variables get no gradient.
    """

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.head = keras.layers.Dense(1)
        self.spare = keras.layers.Dense(5)
        self.tracker = keras.metrics.Mean(name="own_loss")

    def build(self, shape):
        """Build all layers, the spare one as well."""
        self.hidden.build(shape)
        self.head.build([None, 8])
        self.spare.build(shape)
        self.built = True

    def call(self, x):
        """Leave the spare layer out."""
        return self.head(self.hidden(x))

    @property
    def metrics(self):
        """The tracker, which `fit` resets every epoch."""
        return [self.tracker]

    def train_step(self, data):
        """One step with a loss of its own."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"own_loss": self.tracker.result()}


def train_custom_step(strategy):
    keras.utils.set_random_seed(4)
    with scope(strategy):
        model = CustomStepModel()
        model.build([None, 6])
        model.compile(optimizer=keras.optimizers.SGD(0.1))
    before = model.spare.kernel.numpy()
    history = model.fit(*random_data(128), batch_size=32, epochs=10, verbose=0).history
    spare_change = np.abs(model.spare.kernel.numpy() - before).max()
    return {
        "loss": history["own_loss"],
        "spare change": spare_change,
        **all_copies(strategy, model),
    }


# ---- inputs of several kinds -------------------------------------------------------------------

BATCH_SIZE = 16
CLASS_WEIGHT = {0: 0.5, 1: 3.0}


def aligned(array):
    """Return a copy at a multiple of 64 bytes: TensorFlow reads such memory without copying."""
    memory = np.zeros(array.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Batches(PyDataset):
    """The batches of arrays, as views of them."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = [aligned(array) for array in arrays]

    def __len__(self):
        return -(-len(self.arrays[0]) // BATCH_SIZE)

    def __getitem__(self, index):
        rows = slice(index * BATCH_SIZE, (index + 1) * BATCH_SIZE)
        return tuple(array[rows] for array in self.arrays)


def fit_arguments(strategy, kind, x, y):
    """What `fit` gets: the same batches, in inputs of several kinds."""
    weight = np.where(y[:, 0] > 0, CLASS_WEIGHT[1], CLASS_WEIGHT[0]).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((x, y))

    def own_batches(context):
        batches = rows.batch(context.get_per_replica_batch_size(BATCH_SIZE))
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

    match kind:
        case "arrays":
            return {"x": x, "y": y, "batch_size": BATCH_SIZE}
        case "PyDataset":
            return {"x": Batches(x, y)}
        case "dataset":
            return {"x": rows.batch(BATCH_SIZE)}
        case "dataset of unknown length":
            return {"x": rows.filter(lambda x, y: True).batch(BATCH_SIZE)}
        case "dataset per worker":
            return {"x": strategy.distribute_datasets_from_function(own_batches)}
        case "endless dataset per worker":
            endless = strategy.distribute_datasets_from_function(
                lambda context: own_batches(context).repeat()
            )
            return {"x": endless, "steps_per_epoch": len(x) // BATCH_SIZE}
        case "sample_weight":
            return {"x": x, "y": y, "sample_weight": weight, "batch_size": BATCH_SIZE}
        case "dataset with sample_weight":
            weighted = tf.data.Dataset.from_tensor_slices((x, y, weight))
            return {"x": weighted.batch(BATCH_SIZE)}
        case "dataset with class_weight":
            return {"x": rows.batch(BATCH_SIZE), "class_weight": CLASS_WEIGHT}
    raise ValueError(kind)


def fit_input(strategy, kind, rows):
    """Loss, metric and weights after two epochs of the same batches."""
    keras.utils.set_random_seed(5)
    x, y = random_data(rows)
    with scope(strategy):
        model = build_mlp()
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    arguments = fit_arguments(strategy, kind, x, (y > 0).astype("float32"))
    history = model.fit(**arguments, epochs=2, shuffle=False, verbose=0).history
    return {"loss": history["loss"], "mae": history["mae"], **weights_of(model)}


VALIDATION_ROWS = 37


def validation_data():
    return random_data(VALIDATION_ROWS, seed=6)


def fit_with_validation(strategy, split):
    """Logs of validation by rows set apart, or by other rows; and the weights."""
    keras.utils.set_random_seed(6)
    x, y = random_data(64)
    arguments = {"validation_data": validation_data()}
    if split:
        held_out_x, held_out_y = validation_data()
        x, y = np.concatenate([x, held_out_x]), np.concatenate([y, held_out_y])
        arguments = {"validation_split": VALIDATION_ROWS / len(x)}
    with scope(strategy):
        model = build_mlp()
        model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    logs = model.fit(x, y, batch_size=16, epochs=2, verbose=0, **arguments).history
    return {"logs": [logs["val_loss"][-1], logs["val_mae"][-1]], **weights_of(model)}


def evaluate_weights(weights):
    """One process's loss and metric of given weights on the validation data."""
    model = build_mlp()
    model.compile(loss="mse", metrics=["mae"])
    model.set_weights(weights)
    return model.evaluate(*validation_data(), batch_size=VALIDATION_ROWS, verbose=0)
