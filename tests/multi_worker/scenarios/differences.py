"""Workers that run different programs: what each of them raises, and after how many seconds."""

import pathlib
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import tf_adasum

ROWS = 16


def play(strategy, case):
    """Run a case of `CASES`, in which worker 1 does something else; return the error, as text."""
    begun = time.monotonic()
    try:
        CASES[case](strategy, strategy.rank == 1)
    except Exception as error:  # whatever it is, the test compares it
        return {
            "error": np.array([f"{type(error).__name__}: {error}"]),
            "seconds": np.array(time.monotonic() - begun),
        }
    return {"error": np.array(["none"]), "seconds": np.array(time.monotonic() - begun)}


def model_of(strategy, layers=None, **settings):
    settings = {"optimizer": "sgd", "loss": "mse", **settings}
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), *(layers or [keras.layers.Dense(3)])])
        model.add(keras.layers.Dense(1))
        model.compile(**settings)
    return model


def compiled(**of_worker_1):
    """Return a case in which worker 1 passes other arguments to `compile`; each a function."""

    def fit(strategy, is_other):
        settings = {name: pair[is_other]() for name, pair in of_worker_1.items()}
        model_of(strategy, **settings).fit(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)

    return fit


def fitted(**pairs):
    """Return a case in which worker 1 passes other arguments to `fit`."""

    def fit(strategy, is_other):
        arguments = {"x": np.ones([ROWS, 4]), "y": np.ones([ROWS, 1]), "batch_size": 4}
        arguments |= {name: pair[is_other] for name, pair in pairs.items()}
        model_of(strategy).fit(**arguments, verbose=0)

    return fit


def layered(*pair):
    """Return a case in which worker 1 has other layers."""

    def fit(strategy, is_other):
        model = model_of(strategy, layers=pair[is_other]())
        model.fit(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)

    return fit


def method(*pair):
    """Return a case in which worker 1 calls another method, or with other arguments."""

    def call(strategy, is_other):
        model = model_of(strategy)
        pair[is_other](model, np.ones([ROWS, 4]), np.ones([ROWS, 1]))

    return call


def sgd(**settings):
    return lambda: keras.optimizers.SGD(**{"learning_rate": 0.1, **settings})


def adam(**settings):
    return lambda: keras.optimizers.Adam(**settings)


def decay(steps):
    return keras.optimizers.schedules.ExponentialDecay(0.1, steps, 0.9)


def dense(*widths, **settings):
    return lambda: [keras.layers.Dense(width, **settings) for width in widths]


def custom_loop(strategy, is_other):
    variable = make_variable(strategy, 4)
    for _ in range(3 + is_other):
        add(strategy, variable)
    strategy.check_replicas([variable])


def make_variable(strategy, size):
    with strategy.scope():
        return tf.Variable(tf.zeros([size]))


def add(strategy, variable):
    @tf.function
    def step():
        context = tf.distribute.get_replica_context()
        gradient = tf.ones_like(variable)
        variable.assign_add(
            context.all_reduce("SUM", gradient, options=strategy.gradient_reduction)
        )

    strategy.run(step)


def gradients(*sizes):
    def reduce(strategy, is_other):
        def step():
            context = tf.distribute.get_replica_context()
            gradient = tf.ones([sizes[is_other]])
            return context.all_reduce("SUM", gradient, options=strategy.gradient_reduction)

        return strategy.run(tf.function(step))

    return reduce


def outside_of_scope(strategy, is_other):
    del is_other
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)


class SetRate(keras.callbacks.Callback):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.rate


class EvaluatesAlone(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.evaluate(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)


class StopsInEpoch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("the fault of this worker")


def leaves_early(strategy, is_other):
    """Worker 1 leaves `fit` by an exception of its own that it catches."""
    model = model_of(strategy)
    x, y = np.ones([ROWS, 4]), np.ones([ROWS, 1])
    try:
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[StopsInEpoch()] if is_other else [])
    except KeyError:
        pass
    model.evaluate(x, y, verbose=0)


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
    model = model_of(strategy, layers=layers, metrics=[absolute])
    file = tempfile.mkdtemp()  # another path on each worker
    callbacks = [] if is_other else [keras.callbacks.LambdaCallback()]
    callbacks.append(PredictsOnWorker0(f"{file}/log.csv"))
    arguments = {"callbacks": callbacks, "verbose": 2 if is_other else 0}
    model.fit(np.ones([ROWS, 4]), np.ones([ROWS, 1]), **arguments)
    model.evaluate(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)
    of_texts(strategy, f"{file}/words.txt", length=5 + is_other)


def of_texts(strategy, file, length):
    """Train with texts that are as long as the longest one of this worker."""
    pathlib.Path(file).write_text("a\nb\n")
    with strategy.scope():
        words = keras.layers.StringLookup(vocabulary=file)
        pooled = keras.layers.GlobalAveragePooling1D()
        layers = [words, keras.layers.Embedding(3, 2), pooled, keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([None], dtype="string"), *layers])
        model.compile("sgd", "mse")
    texts = tf.data.Dataset.from_tensors((tf.fill([ROWS, length], "a"), tf.ones([ROWS, 1])))
    model.fit(texts.unbatch().batch(4), verbose=0)


def other_weights(strategy, is_other):
    model = model_of(strategy)
    if is_other:
        model.layers[0].kernel.assign(model.layers[0].kernel + 1.0)
    model.fit(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)


def frozen(strategy, is_other):
    model = model_of(strategy)
    model.layers[0].trainable = not is_other
    model.fit(np.ones([ROWS, 4]), np.ones([ROWS, 1]), verbose=0)


def rate_between(strategy, is_other):
    model = model_of(strategy)
    x, y = np.ones([ROWS, 4]), np.ones([ROWS, 1])
    model.fit(x, y, verbose=0)
    model.optimizer.learning_rate = 0.2 if is_other else 0.1
    model.fit(x, y, verbose=0)


def later_on_batch(strategy, is_other):
    """Worker 1 changes its learning rate between two of many calls for a batch."""
    model = model_of(strategy)
    x, y = np.ones([ROWS, 4]), np.ones([ROWS, 1])
    model.train_on_batch(x, y)
    model.optimizer.learning_rate = 0.2 if is_other else 0.1
    while True:
        model.train_on_batch(x, y)


def data_of(width=4, rows=ROWS):
    return tf.data.Dataset.from_tensor_slices((np.ones([rows, width]), np.ones([rows, 1]))).batch(4)


x, y = np.ones([ROWS, 4]), np.ones([ROWS, 1])
CASES = {
    # of the model
    "another width": layered(dense(3), dense(5)),
    "another order of layers": layered(dense(3, 5), dense(5, 3)),
    "one more layer": layered(dense(3), dense(3, 3)),
    "another activation": layered(dense(3, activation="relu"), dense(3, activation="tanh")),
    "another dtype policy": layered(dense(3), dense(3, dtype="mixed_float16")),
    "another dropout": layered(
        lambda: [keras.layers.Dropout(0.1)], lambda: [keras.layers.Dropout(0.2)]
    ),
    "another momentum of BatchNormalization": layered(
        lambda: [keras.layers.BatchNormalization()],
        lambda: [keras.layers.BatchNormalization(momentum=0.9)],
    ),
    "a frozen layer": frozen,
    "other weights": other_weights,
    "outside of the scope": outside_of_scope,
    # of compile
    "another optimizer": compiled(optimizer=(sgd(), adam())),
    "another learning rate": compiled(optimizer=(sgd(), sgd(learning_rate=0.2))),
    "another momentum": compiled(optimizer=(sgd(momentum=0.9), sgd(momentum=0.8))),
    "another beta_1": compiled(optimizer=(adam(), adam(beta_1=0.8))),
    "another weight decay": compiled(optimizer=(sgd(), sgd(weight_decay=0.1))),
    "a schedule": compiled(optimizer=(sgd(), sgd(learning_rate=decay(10)))),
    "another schedule": compiled(
        optimizer=(sgd(learning_rate=decay(20)), sgd(learning_rate=decay(10)))
    ),
    "another clipping": compiled(optimizer=(sgd(), sgd(clipnorm=1.0))),
    "another accumulation": compiled(optimizer=(sgd(), sgd(gradient_accumulation_steps=2))),
    "another wrapper": compiled(
        optimizer=(sgd(), lambda: tf_adasum.optimizers.DeltaAdasum(sgd()(), local_steps=2))
    ),
    "another loss": compiled(loss=(lambda: "mse", lambda: "mae")),
    "another metric": compiled(metrics=(lambda: ["mae"], lambda: ["mse"])),
    "another steps_per_execution": compiled(steps_per_execution=(lambda: 1, lambda: 2)),
    "another run_eagerly": compiled(run_eagerly=(lambda: False, lambda: True)),
    # of fit
    "another number of epochs": fitted(epochs=(2, 3)),
    "another batch size": fitted(batch_size=(4, 8)),
    "other steps per epoch": fitted(steps_per_epoch=(2, 3)),
    "another initial epoch": fitted(epochs=(3, 3), initial_epoch=(0, 1)),
    "validation on one worker": fitted(validation_data=(None, (x, y))),
    "another validation frequency": fitted(
        epochs=(2, 2), validation_data=((x, y), (x, y)), validation_freq=(1, 2)
    ),
    "another validation split": fitted(validation_split=(0.5, 0.25)),
    "another shuffle": fitted(shuffle=(True, False)),
    "another class weight": fitted(y=(np.zeros([ROWS, 1]),) * 2, class_weight=({0: 1.0}, {0: 2.0})),
    "sample weights on one worker": fitted(sample_weight=(None, np.ones([ROWS]))),
    "fewer rows": fitted(x=(x, x[:12]), y=(y, y[:12])),
    "no rows": fitted(x=(x, x[:0]), y=(y, y[:0])),
    "wider rows": fitted(x=(x, np.ones([ROWS, 5]))),
    "another kind of data": fitted(x=(x, data_of()), y=(y, None), batch_size=(4, None)),
    "a dataset of fewer batches": fitted(
        x=(data_of(), data_of(rows=12)), y=(None, None), batch_size=(None, None)
    ),
    "learning rate set by a callback": fitted(
        epochs=(2, 2), callbacks=([SetRate(0.1)], [SetRate(0.2)])
    ),
    "learning rate set between two calls": rate_between,
    # other calls
    "fit and evaluate": method(
        lambda model, x, y: model.fit(x, y, verbose=0),
        lambda model, x, y: model.evaluate(x, y, verbose=0),
    ),
    "predict with another batch size": method(
        lambda model, x, y: model.predict(x, batch_size=4, verbose=0),
        lambda model, x, y: model.predict(x, batch_size=8, verbose=0),
    ),
    "train_on_batch and test_on_batch": method(
        lambda model, x, y: model.train_on_batch(x, y),
        lambda model, x, y: model.test_on_batch(x, y),
    ),
    "train_on_batch with fewer rows": method(
        lambda model, x, y: model.train_on_batch(x, y),
        lambda model, x, y: model.train_on_batch(x[:8], y[:8]),
    ),
    "later train_on_batch with another rate": later_on_batch,
    "evaluates alone": fitted(callbacks=([], [EvaluatesAlone()])),
    "leaves fit early": leaves_early,
    # custom loops
    "gradients of another shape": gradients(10, 13),
    "gradients of a much larger shape": gradients(10, 1000),
    "variables of another shape": lambda strategy, is_other: make_variable(strategy, 4 + is_other),
    "one step more": custom_loop,
    "what may differ": other_names,
}
