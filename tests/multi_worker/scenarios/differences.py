"""Workers that run different programs: what each of them raises, and after how many seconds."""

import contextlib
import pathlib
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import tf_adasum
from scenarios import basics
from tf_adasum import rules
from tf_adasum.compat import keras as keras_compat

LearningRateScheduler = keras.callbacks.LearningRateScheduler
ROWS = 16
X, Y = np.ones([ROWS, 4]), np.ones([ROWS, 1])


def run(strategy, case):
    """Run a case of `CASES`, in which worker 1 does something else; return the error, as text."""
    begun, text = time.monotonic(), "none"
    try:
        CASES[case](strategy, strategy.rank == 1)
    except Exception as error:  # whatever it is, the test compares it
        text = f"{type(error).__name__}: {error}"
    return {"error": np.array([text]), "seconds": np.array(time.monotonic() - begun)}


def model_of(strategy, layers=None, optimizer=keras.optimizers.SGD, **settings):
    own = layers() if layers else [keras.layers.Dense(3)]
    layers = [keras.Input([4]), *own, keras.layers.Dense(1)]
    return basics.compiled(strategy, lambda: layers, optimizer, **settings)


def compiled(**of_worker_1):
    """Return a case in which worker 1 has other layers, or other arguments of `compile`."""

    def fit(strategy, is_other):
        settings = {name: pair[is_other] for name, pair in of_worker_1.items()}
        model_of(strategy, **settings).fit(X, Y, verbose=0)

    return fit


def fitted(**pairs):
    """Return a case in which worker 1 passes other arguments to `fit`."""

    def fit(strategy, is_other):
        arguments = {"x": X, "y": Y, "batch_size": 4, "verbose": 0}
        arguments |= {name: pair[is_other] for name, pair in pairs.items()}
        model_of(strategy).fit(**arguments)

    return fit


def called(*pair):
    """Return a case in which worker 1 does something else with a model."""

    def call(strategy, is_other):
        pair[is_other](model_of(strategy))

    return call


def dense(*widths, **settings):
    return lambda: [keras.layers.Dense(width, **settings) for width in widths]


def saves_alone(strategy, is_other):
    """Worker 0 saves a variable that each replica updates separately."""
    with strategy.scope():
        variable = basics.read_as("MEAN", 0.0, name="average")
    if not is_other:
        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(variable=variable).save(f"{folder}/checkpoint")
    strategy.check_replicas()


def reduce(strategy, size):
    def step():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", tf.ones([size]), options=strategy.gradient_reduction)

    strategy.run(tf.function(step))


def other_groups(strategy, is_other):
    """Worker 1 numbers its layers differently, and a group of variables is a number."""
    basics.use_rule(strategy, rules.Adasum({".*dense_1/.*": "second"}))
    if is_other:
        keras.layers.Dense(2)
    model_of(strategy, layers=dense(4, 4)).fit(X, Y, verbose=0)


def other_wrapper(strategy, is_other):
    """Worker 1 builds an optimizer with another setting, without `compile`."""
    optimizer = tf_adasum.optimizers.DeltaAdasum(keras.optimizers.SGD(), local_steps=1 + is_other)
    with strategy.scope():
        keras_compat.build(optimizer, [keras.Variable(np.zeros(3, "float32"))])


def lacks_gradient(strategy, is_other):
    """Worker 1 has no gradient for the second variable."""
    with strategy.scope():
        variables = [keras.Variable(np.zeros(size, "float32")) for size in (3, 4)]
        optimizer = keras.optimizers.SGD()
        keras_compat.build(optimizer, variables)
    gradients = [tf.ones(3), None if is_other else tf.ones(4)]
    strategy.run(lambda: keras_compat.apply(optimizer, gradients, variables))


class EvaluatesAlone(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.evaluate(X, Y, verbose=0)


class StopsInEpoch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("the fault of this worker")


def leaves_early(strategy, is_other):
    """Worker 1 leaves `fit` by an exception of its own that it catches."""
    model, given = model_of(strategy), [StopsInEpoch()] if is_other else []
    with contextlib.suppress(KeyError):
        model.fit(X, Y, batch_size=4, verbose=0, callbacks=given)
    model.evaluate(X, Y, verbose=0)


class PredictsOnWorker0(keras.callbacks.CSVLogger):
    def on_epoch_end(self, epoch, logs=None):
        self.model.predict(np.ones([2, 4]), verbose=0)


def other_names(strategy, is_other):
    """What may differ: names of layers, seeds of Dropout, callbacks, what is printed."""
    if is_other:
        keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])  # layers count on
    layers = [keras.layers.Dense(3), keras.layers.Dropout(0.5, seed=1 + is_other)]
    with strategy.scope():
        absolute = keras.metrics.MeanMetricWrapper(lambda y_true, y_pred: abs(y_true - y_pred))
    model = model_of(strategy, layers=lambda: layers, metrics=[absolute])
    file = tempfile.mkdtemp()  # another path on each worker
    callbacks = [] if is_other else [keras.callbacks.LambdaCallback()]
    callbacks.append(PredictsOnWorker0(f"{file}/log.csv"))
    arguments = {"callbacks": callbacks, "verbose": 2 if is_other else 0}
    model.fit(X, Y, **arguments)
    model.evaluate(X, Y, verbose=0)
    of_texts(strategy, f"{file}/words.txt", length=5 + is_other)


def of_texts(strategy, file, length):
    """Train with texts that are as long as the longest one of this worker."""
    pathlib.Path(file).write_text("a\nb\n")
    words = keras.layers.StringLookup(vocabulary=file)
    pooled = keras.layers.GlobalAveragePooling1D()
    layers = [keras.Input([None], dtype="string"), words, keras.layers.Embedding(3, 2), pooled]
    model = basics.compiled(strategy, lambda: [*layers, keras.layers.Dense(1)])
    texts = tf.data.Dataset.from_tensors((tf.fill([ROWS, length], "a"), tf.ones([ROWS, 1])))
    model.fit(texts.unbatch().batch(4), verbose=0)


def other_weights(model):
    model.layers[0].kernel.assign(model.layers[0].kernel + 1.0)
    model.fit(X, Y, verbose=0)


def frozen(model):
    model.layers[0].trainable = False
    model.fit(X, Y, verbose=0)


DATASET = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
CASES = {
    # of the model
    "another width": compiled(layers=(dense(3), dense(5))),
    "a frozen layer": called(lambda model: model.fit(X, Y, verbose=0), frozen),
    "other weights": called(lambda model: model.fit(X, Y, verbose=0), other_weights),
    # of compile
    "another optimizer": compiled(optimizer=(keras.optimizers.SGD, keras.optimizers.Adam)),
    "another loss": compiled(loss=("mse", "mae")),
    # of fit
    "validation on one worker": fitted(validation_data=(None, (X, Y))),
    "another kind of data": fitted(x=(X, DATASET), y=(Y, None), batch_size=(4, None)),
    "learning rate set by a callback": fitted(
        callbacks=[
            [LearningRateScheduler(lambda epoch, _, rate=rate: rate)] for rate in (0.1, 0.2)
        ],
        epochs=(2, 2),
    ),
    # other calls
    "train_on_batch and test_on_batch": called(
        lambda model: model.train_on_batch(X, Y), lambda model: model.test_on_batch(X, Y)
    ),
    "train_on_batch with fewer rows": called(
        lambda model: model.train_on_batch(X, Y), lambda model: model.train_on_batch(X[:8], Y[:8])
    ),
    "evaluates alone": fitted(callbacks=([], [EvaluatesAlone()])),
    "leaves fit early": leaves_early,
    # custom loops
    "another wrapper": other_wrapper,
    "gradients of another shape": lambda strategy, is_other: reduce(strategy, 10 + 3 * is_other),
    "a gradient is missing": lacks_gradient,
    "gradients of other groups": other_groups,
    "saves a variable alone": saves_alone,
    "what may differ": other_names,
}
