"""The same training on one device and on replicas."""

import contextlib
import functools
import itertools
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from support.all_pairs import every_pair

from scenarios.basics import LossScaleOptimizer, compiled, scope, use_rule, weights_of
from tf_adasum import optimizers

BATCH, STEPS, FEATURES = 8, 5, 4
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam

LOSSES = (
    "built-in",
    "function",
    "scalar",
    "masked",
    "weighted",
    "class weights",
    "two outputs",
    "add_loss",
    "regularizer",
    "compute_loss",
    "train_step",
    "loop",
)
REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight", "none")
# The rows of the last batch; the others have `BATCH` rows.
ROWS = {"full": 8, "partial": 7, "few": 2, "one": 1}
CLIPPING = {
    "": {},
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.03},
    "global_clipnorm": {"global_clipnorm": 0.05},
}
# With the scale 1, AdaScale takes the steps of its inner optimizer.
OPTIMIZERS = {
    "SGD": lambda clip: SGD(0.02, momentum=0.9, **clip),
    "Adam": lambda clip: Adam(0.01, epsilon=1e-3, **clip),
    "accumulation": lambda clip: SGD(0.02, gradient_accumulation_steps=2, **clip),
    "EMA": lambda clip: SGD(0.02, use_ema=True, ema_overwrite_frequency=2, **clip),
    "LossScale": lambda clip: LossScaleOptimizer(SGD(0.02, **clip), initial_scale=64.0),
    "AdaScale": lambda clip: optimizers.AdaScale(SGD(0.02, momentum=0.9, **clip), scale=1),
}


def is_possible(loss, reduction, *_):
    """Keras cannot add the vector of losses and the scalar of `add_loss` or of a penalty."""
    return reduction != "none" or loss not in ("add_loss", "regularizer")


def cases():
    """Return combinations of which every two values occur together, as far as Keras has them."""
    return every_pair(LOSSES, REDUCTIONS, ROWS, CLIPPING, OPTIMIZERS, allowed=is_possible)


class RowLoss(keras.losses.Loss):
    """A loss of one's own: one value for each row."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


class ScalarLoss(keras.losses.Loss):
    """A loss of one's own that is already the mean over the rows."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5)


@keras.saving.register_keras_serializable("tests")
class AddingLayer(keras.layers.Layer):
    """Adds the value of a function and of a `keras.losses` object."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        self.add_loss(2.0 * keras.losses.MeanSquaredError()(inputs[:, :1], inputs[:, 1:2]))
        return inputs


class OwnComputeLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean((y - y_pred) ** 2)


class OwnTrainStep(keras.Model):
    log = "own loss"  # of "loss", `fit` reads Keras's metric instead

    def train_step(self, data):
        x, y, *_ = data  # of `train_on_batch` with weights
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {self.log: loss}


def data_of(kind, rows):
    generator = np.random.default_rng(0)
    count = (STEPS - 1) * BATCH + rows
    if kind == "masked":
        x = generator.standard_normal([count, 5, FEATURES]).astype("float32")
        x[generator.random([count, 5]) < 0.4] = 0
        x[:, 0] = 1.0
        y = x.sum(axis=2, keepdims=True) / 4 + 1
    else:
        x = generator.standard_normal([count, FEATURES]).astype("float32")
        y = np.sin(x.sum(axis=1, keepdims=True)) + 1
    if kind == "class weights":
        y = np.float32(y > 1)
    weights = generator.uniform(0.1, 2, count).astype("float32") if kind == "weighted" else None
    return x, y.astype("float32"), weights


def loss_of(kind, reduction):
    made = {"function": RowLoss, "scalar": ScalarLoss}.get(kind, keras.losses.MeanSquaredError)
    return made(reduction=reduction)


def build(kind):
    shape = [5, FEATURES] if kind == "masked" else [FEATURES]
    inputs = hidden = keras.Input(shape)
    if kind == "masked":
        hidden = keras.layers.Masking()(hidden)
    penalty = keras.regularizers.L2(0.1) if kind == "regularizer" else None
    hidden = keras.layers.Dense(3, "tanh", kernel_regularizer=penalty)(hidden)
    if kind == "add_loss":
        hidden = AddingLayer()(hidden)
    outputs = keras.layers.Dense(1)(hidden)
    if kind == "two outputs":
        outputs = {"a": outputs, "b": keras.layers.Dense(1)(hidden)}
    model = {"compute_loss": OwnComputeLoss, "train_step": OwnTrainStep}.get(kind, keras.Model)
    return model(inputs, outputs)


def train(strategy, case, rule="mean", start=None):
    """Train on few batches; return weights, losses and metrics.

    With the weights `start`, take steps of length 0 instead: all logs are those of these weights.
    """
    kind, reduction, rows, clipping, optimizer = case
    use_rule(strategy, rule)
    keras.utils.set_random_seed(1)
    x, y, weights = data_of(kind, ROWS[rows])
    with scope(strategy):
        model = build(kind)
        made = SGD(0.0) if start else OPTIMIZERS[optimizer](CLIPPING[clipping])
        if start:
            model.set_weights(start)
        if kind == "loop":
            made.build(model.trainable_variables)
            return loop(strategy, model, made, reduction, x, y)
        loss = loss_of(kind, reduction)
        metrics = {} if kind == "train_step" else {"metrics": ["mae"]}
        if kind == "two outputs":
            loss = {"a": loss, "b": keras.losses.MeanAbsoluteError()}
            metrics = {"loss_weights": {"a": 0.5, "b": 2.0}}
            y = {"a": y, "b": -y}
        if kind == "weighted":
            metrics = {"weighted_metrics": ["mae"]}
        model.compile(made, loss, **metrics)
    arguments = {"batch_size": BATCH, "verbose": 0, "sample_weight": weights}
    class_weight = {0: 0.5, 1: 2.0} if kind == "class weights" else None
    training = {"epochs": 2, "shuffle": False, "class_weight": class_weight}
    history = model.fit(x, y, **training, **arguments).history
    evaluated = model.evaluate(x, y, return_dict=True, **arguments)
    if kind == "train_step":
        model.log, model.train_function = "loss", None  # to be traced again
    trained = model.train_on_batch(x, y, weights, class_weight, return_dict=True)
    return {
        **history,
        **{f"evaluated {name}": value for name, value in evaluated.items()},
        **{f"on batch {name}": value for name, value in trained.items()},
        "tested on batch": model.test_on_batch(x, y, weights),
        **weights_of(model),
    }


def take_steps(strategy, on_replica, x, y):
    """Run a step of each replica for each batch; return what the replicas return, summed."""

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None)

    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    return [step(batch).numpy() for batch in strategy.experimental_distribute_dataset(batches)]


def loop(strategy, model, optimizer, reduction, x, y):
    """A custom training loop, whose loss is that of a replica's rows, without a division."""
    strategy = strategy or tf.distribute.get_strategy()
    loss_of_rows = keras.losses.MeanSquaredError(reduction=reduction)
    with strategy.scope():
        metric = keras.metrics.MeanSquaredError()

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = loss_of_rows(y, predicted)
            loss = tf.reduce_mean(loss) if reduction == "none" else loss
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables))
        metric.update_state(y, predicted)
        return loss

    for _ in range(2):
        take_steps(strategy, on_replica, x, y)
    return {"metric": metric.result().numpy(), **weights_of(model)}


def train_all(strategy, cases, rule="mean", starts=None):
    """Train each case, from the weights that `starts` has for it; return all results."""
    results = {}
    for number, case in enumerate(cases):
        own = train(strategy, tuple(case), rule, starts and starts[number])
        results |= {f"{number}/{name}": value for name, value in own.items()}
        keras.backend.clear_session()
    return results


def weights_in(results, number):
    """Return the weights of a case."""
    names = itertools.takewhile(results.__contains__, (f"{number}/weight{i}" for i in range(99)))
    return [results[name] for name in names]


def built(strategy, rule, make, rows, **options):
    """Return the strategy of a loop, a model, the optimizer that is made, and data."""
    use_rule(strategy, rule, **options)
    strategy = strategy or tf.distribute.get_strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, optimizer = build("loop"), make()
        optimizer.build(model.trainable_variables)
    return strategy, model, optimizer, data_of("loop", rows)[:2]


def loop_of_tensorflow(strategy, rule, divides=True):
    """A loop with the losses that TensorFlow divides by the number of replicas, or without them."""
    strategy, model, optimizer, data = built(strategy, rule, lambda: SGD(0.1), 6)

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            rows = tf.reduce_mean((y - model(x, training=True)) ** 2, axis=1)
            penalty = tf.reduce_sum(model.weights[0] ** 2)
            loss = tf.reduce_mean(rows) + penalty
            if divides:
                loss = tf.nn.compute_average_loss(rows) + tf.nn.scale_regularization_loss(penalty)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    return {"losses": take_steps(strategy, on_replica, *data), **weights_of(model)}


def loop_that_clips(strategy, rule="mean", rows=3, **options):
    """A loop that combines gradients itself, clips them and applies them."""
    make = functools.partial(Adam, 0.01, epsilon=1e-3, clipvalue=0.04)
    strategy, model, optimizer, data = built(strategy, rule, make, rows, **options)

    def on_replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - model(x, training=True)) ** 2)
        gradients, combined = tape.gradient(loss, model.trainable_variables), contextlib.nullcontext
        if tf.distribute.has_strategy():
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce("SUM", gradients, options=strategy.gradient_reduction)
            combined = strategy.gradients_are_combined
        with combined():
            optimizer.apply(tf.clip_by_global_norm(gradients, 0.1)[0])
        return loss

    take_steps(strategy, on_replica, *data)
    return weights_of(model)


def exchanges_beside_gradients(strategy, optimizer="SGD"):
    """How many values a plain training step under the rule mean exchanges beside its gradients."""
    use_rule(strategy, "mean")
    calls, own = [], tf.distribute.ReplicaContext
    original = own.all_reduce

    def counting(self, *args, options=None):
        if options is None:  # with options, it combines gradients
            calls.append(args)
        return original(self, *args, options=options)

    x, y, _ = data_of("built-in", BATCH)
    make = functools.partial(OPTIMIZERS[optimizer], {})
    with mock.patch.object(own, "all_reduce", counting):
        model = compiled(strategy, lambda: build("built-in"), make, metrics=["mae"])
        model.fit(x, y, batch_size=BATCH, verbose=0)
    return {"exchanges": len(calls)}


def orders_of_epochs(strategy):
    """The first rows of each pass over a shuffled dataset: of `fit`, and of the dataset alone."""
    keras.utils.set_random_seed(1)
    rows = 2.0 ** np.arange(16, dtype="float32")[:, None]
    own, data = (
        tf.data.Dataset.from_tensor_slices((rows, rows)).shuffle(16, seed=1).batch(2)
        for _ in range(2)
    )
    own = [float(tf.reduce_sum(next(iter(own))[0])) for _ in range(6)]
    last = keras.layers.Dense(1, kernel_initializer="zeros", trainable=False)
    loss = keras.losses.MeanAbsoluteError(reduction="sum")
    model = compiled(strategy, lambda: [keras.Input([1]), last], loss=loss)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: batch or seen.append(float(logs["loss"]))
    )
    model.fit(data, epochs=3, verbose=0, callbacks=[note])
    return {"seen": seen, "own": own}
