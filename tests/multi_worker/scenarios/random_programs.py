"""Random programs that are the same on both workers, except for what may differ between workers."""

import random
import time

import keras
import numpy as np
import tensorflow as tf

from tf_adasum import callbacks, optimizers

layers, sgd = keras.layers, keras.optimizers.SGD
LAYERS = [
    lambda width: layers.Dense(width, activation="relu"),
    lambda width: layers.Dense(width, activation=keras.ops.tanh),
    lambda width: layers.Dense(width, kernel_regularizer=keras.regularizers.L2(0.01)),
    lambda width: layers.Dense(width, kernel_constraint="non_neg", use_bias=False),
    lambda width: layers.Dense(width, kernel_initializer=keras.initializers.HeNormal()),
    lambda width: layers.Dense(width, dtype="mixed_bfloat16"),
    lambda width: layers.Dropout(0.3, seed=random.randrange(1000)),  # another one on each worker
    lambda width: layers.BatchNormalization(momentum=0.9),
    lambda width: layers.Lambda(lambda inputs: inputs * 0.5),
    lambda width: keras.Sequential([layers.Dense(width), layers.Dropout(0.2)]),
    lambda width: keras.Sequential([layers.Reshape([-1, 1]), layers.LSTM(width)]),
]
RATES = [0.01, np.float64(0.01), 1 / 3e2, keras.optimizers.schedules.CosineDecay(0.01, 10)]
OPTIMIZERS = [
    lambda rate: sgd(rate, momentum=0.9, nesterov=True),
    lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0),
    lambda rate: keras.optimizers.RMSprop(rate, use_ema=True),
    lambda rate: sgd(rate, gradient_accumulation_steps=2),
    lambda rate: optimizers.LAMB(rate),
    lambda rate: optimizers.DeltaAdasum(sgd(0.01)),
    lambda rate: "adam",
]
CALLBACKS = [
    lambda: keras.callbacks.EarlyStopping("loss", patience=1),
    lambda: callbacks.ReplicaCheck(),
    lambda: callbacks.StragglerReport(),
    lambda: keras.callbacks.TerminateOnNaN(),
]


def run(strategy, seeds):
    """Run the program of each seed: a model, how it is compiled, and some calls; none may fail."""
    for seed in seeds:
        try:
            run_program(strategy, random.Random(seed), np.random.default_rng([seed, strategy.rank]))
        except Exception as error:
            raise AssertionError(f"program {seed}") from error
        keras.backend.clear_session()
    return {}


def run_program(strategy, shared, rows):
    """Run a program; `shared` draws alike on all workers, and `rows` and `random` do not."""
    if random.random() < 0.3:
        keras.Sequential([keras.Input([4]), layers.Dense(1)])  # names of layers differ
    with strategy.scope():
        inner = [shared.choice(LAYERS)(shared.randrange(2, 9)) for _ in range(shared.randrange(3))]
        given = [keras.Input([6])] if shared.random() < 0.5 else []
        model = keras.Sequential([*given, *inner, layers.Dense(3, dtype="float32")])
        crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [[], ["accuracy"], [keras.metrics.SparseCategoricalAccuracy(), own_loss]]
        model.compile(
            shared.choice(OPTIMIZERS)(shared.choice(RATES)),
            shared.choice([crossentropy, own_loss]),
            metrics=shared.choice(metrics),
            run_eagerly=shared.random() < 0.03,
            steps_per_execution=shared.choice([1, 1, 1, 2]),
        )
    for _ in range(shared.randrange(1, 3)):
        epochs = shared.randrange(1, 3)
        model.fit(
            **data(shared, rows),
            epochs=epochs,
            initial_epoch=shared.randrange(epochs),
            shuffle=shared.random() < 0.5,
            verbose=random.choice([0, 0, 2]),
            callbacks=[
                *(each() for each in shared.sample(CALLBACKS, shared.randrange(3))),
                *[keras.callbacks.LambdaCallback()] * random.randrange(2),
            ],
        )
        time.sleep(random.choice([0, 0, 0.05, 0.2]))
        if shared.random() < 0.3:
            model.layers[0].trainable = len(model.layers) == 1
            with strategy.scope():
                model.compile("sgd", own_loss)
        if shared.random() < 0.3:
            model.set_weights(model.get_weights())
    x, y = arrays(rows, shared.randrange(1, 20))
    calls = [
        lambda: model.evaluate(**data(shared, rows), verbose=0, return_dict=random.random() < 0.5),
        lambda: model.predict(x, batch_size=4, verbose=0),
        lambda: model.train_on_batch(x, y),
        lambda: model.predict_on_batch(x),
    ]
    shared.choice(calls)()


def arrays(rows, count):
    return rows.normal(size=[count, 6]).astype("float32"), rows.integers(0, 3, count)


def data(shared, rows):
    """Return arguments of `fit` and `evaluate`: some kind of data."""
    size = shared.choice([2, 4, 8])
    x, y = arrays(rows, size * shared.randrange(2, 6) + shared.randrange(2))
    given = {"x": x, "y": y, "batch_size": size}
    kinds = [
        lambda: given,
        lambda: given | {"sample_weight": rows.uniform(size=len(x))},
        lambda: given | {"x": tf.constant(x), "y": tf.constant(y)},
        lambda: {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(size)},
    ]
    return shared.choice(kinds)()


def own_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
