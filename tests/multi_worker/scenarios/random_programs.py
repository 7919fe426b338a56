"""Random programs that are the same on both workers, except for what may differ between workers."""

import random
import time

import keras
import numpy as np
import tensorflow as tf
from support.stacks import PyDataset

from tf_adasum import callbacks, optimizers

FEATURES = 6
CLASSES = 3


def run(strategy, seeds):
    """Run the program of each seed; return the errors as text, and the seconds of all."""
    begun, errors = time.monotonic(), []
    for seed in seeds:
        calls = []
        try:
            Program(strategy, int(seed), calls).run()
        except Exception as error:  # whatever it is, no program may fail
            errors.append(f"seed {seed}: {calls}: {type(error).__name__}: {error}")
            break
        keras.backend.clear_session()
    return {"errors": np.array(errors, str), "seconds": np.array(time.monotonic() - begun)}


class Program:
    """A model, how it is compiled, and some calls; `shared` draws alike on all workers."""

    def __init__(self, strategy, seed, calls):
        self.strategy, self.calls = strategy, calls
        self.shared = random.Random(seed)
        self.own = random.Random(f"{seed} on {strategy.rank}")
        self.rows = np.random.default_rng([seed, strategy.rank])  # each worker has other rows

    def run(self):
        if self.own.random() < 0.3:
            keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])  # names of layers differ
        with self.strategy.scope():
            self.model = self.build()
        self.compile()
        methods = [self.fit, self.fit, self.evaluate, self.predict, self.on_batch, self.change]
        for method in [self.fit, *self.shared.choices(methods, k=self.shared.choice([0, 0, 1, 1]))]:
            self.calls.append(method.__name__)
            method()
            time.sleep(self.own.choice([0, 0, 0, 0.05, 0.2]))

    # ---- model and compile ----

    def build(self):
        kind = self.shared.choice(["sequential", "functional", "subclass", "unbuilt"])
        self.calls.append(kind)
        blocks = [self.layer() for _ in range(self.shared.randrange(3))]
        head = keras.layers.Dense(CLASSES, dtype="float32", name="head")
        if kind == "functional":
            outputs = inputs = keras.Input([FEATURES])
            for block in blocks:
                outputs = block(outputs)
            return keras.Model(inputs, head(outputs))
        if kind == "subclass":
            return Subclass([*blocks, head])
        layers = [*blocks, head]
        return keras.Sequential(layers if kind == "unbuilt" else [keras.Input([FEATURES]), *layers])

    def layer(self):
        layers, draw = keras.layers, self.shared
        width = draw.randrange(2, 9)
        made = draw.choice(
            [
                lambda: layers.Dense(
                    width, activation=draw.choice(["relu", "gelu", keras.ops.tanh])
                ),
                lambda: layers.Dense(width, kernel_regularizer=keras.regularizers.L2(0.01)),
                lambda: layers.Dense(width, kernel_constraint="non_neg", use_bias=False),
                lambda: layers.Dense(width, kernel_initializer=keras.initializers.HeNormal()),
                lambda: layers.Dense(width, dtype="mixed_bfloat16"),
                lambda: layers.Dropout(0.3, seed=self.own.randrange(1000)),
                lambda: layers.GaussianNoise(0.1),
                lambda: layers.BatchNormalization(momentum=0.9),
                lambda: layers.LayerNormalization(),
                lambda: layers.Lambda(lambda inputs: inputs * 0.5),
                lambda: layers.Activation("relu"),
                lambda: keras.Sequential([layers.Dense(width), layers.Dropout(0.2)]),
                lambda: keras.Sequential(
                    [layers.Reshape([-1, 1]), layers.LSTM(width), layers.UnitNormalization()]
                ),
                lambda: keras.Sequential(
                    [layers.Reshape([-1, 1]), layers.Conv1D(4, 2), layers.GlobalMaxPooling1D()]
                ),
            ]
        )
        layer = made()
        self.calls.append(type(layer).__name__)
        return layer

    def compile(self):
        draw = self.shared
        rate = draw.choice(
            [0.01, np.float64(0.01), 1 / 3e2, keras.optimizers.schedules.CosineDecay(0.01, 10)]
        )
        sgd = keras.optimizers.SGD
        with self.strategy.scope():
            optimizer = draw.choice(
                [
                    lambda: sgd(rate, momentum=0.9, nesterov=True),
                    lambda: keras.optimizers.Adam(rate, clipnorm=1.0),
                    lambda: keras.optimizers.AdamW(rate, weight_decay=0.01),
                    lambda: keras.optimizers.RMSprop(rate, use_ema=True),
                    lambda: keras.optimizers.Lion(rate, global_clipnorm=1.0),
                    lambda: sgd(rate, gradient_accumulation_steps=2),
                    lambda: optimizers.LAMB(rate),
                    lambda: optimizers.DeltaAdasum(sgd(0.01)),
                    lambda: "adam",
                ]
            )()
            crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            loss = draw.choice([crossentropy, own_loss, "mse" if draw.random() < 0.5 else own_loss])
            metrics = draw.choice(
                [[], None, ["accuracy"], [keras.metrics.SparseCategoricalAccuracy(), own_loss]]
            )
            self.model.compile(
                optimizer,
                loss,
                metrics=metrics if loss != "mse" else ["mae"],
                weighted_metrics=draw.choice([None, []]),
                run_eagerly=draw.random() < 0.03,
                steps_per_execution=draw.choice([1, 1, 1, 1, 1, 2]),
                jit_compile=draw.random() < 0.01,
            )
        self.targets = (CLASSES,) if loss == "mse" else ()
        name = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
        self.calls += [name, getattr(loss, "__name__", str(loss))]

    # ---- data ----

    def arrays(self, rows):
        x = self.rows.normal(size=[rows, FEATURES]).astype("float32")
        if self.targets:
            return x, self.rows.normal(size=[rows, *self.targets]).astype("float32")
        return x, self.rows.integers(0, CLASSES, rows)

    def data(self):
        """Return arguments of `fit` and `evaluate`: some kind of data."""
        draw = self.shared
        size = draw.choice([2, 4, 8])
        x, y = self.arrays(size * draw.randrange(2, 6) + draw.choice([0, 0, 1]))
        kind = draw.choice(
            ["arrays", "arrays", "tensors", "list", "dataset", "endless", "generator", "sequence"]
        )
        self.calls.append(f"{kind} of {len(x)} by {size}")
        steps = draw.randrange(1, 4)
        dataset = tf.data.Dataset.from_tensor_slices((x, y))
        if kind == "dataset":
            return {"x": dataset.batch(size, drop_remainder=draw.random() < 0.5)}
        if kind == "endless":
            return {"x": dataset.shuffle(8).repeat().batch(size).prefetch(2), "steps": steps}
        if kind == "sequence":
            return {"x": Batches(x, y, size)}
        if kind == "generator":
            parts = range(0, len(x), size)
            return {"x": ((x[each : each + size], y[each : each + size]) for each in parts)}
        arguments = {"x": x, "y": y, "batch_size": size}
        if kind == "tensors":
            arguments |= {"x": tf.constant(x), "y": tf.constant(y)}
        if kind == "arrays" and draw.random() < 0.3:
            arguments["sample_weight"] = self.rows.uniform(size=len(x))
        return arguments

    def own_callbacks(self):
        """Callbacks of all workers, and some that this worker alone has."""
        draw = self.shared
        alike = [
            lambda: keras.callbacks.EarlyStopping("loss", patience=1),
            lambda: keras.callbacks.ReduceLROnPlateau("loss", patience=1),
            lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            lambda: callbacks.ReplicaCheck(),
            lambda: callbacks.StragglerReport(),
            lambda: keras.callbacks.TerminateOnNaN(),
        ]
        scheduled = not isinstance(
            getattr(self.model.optimizer, "_learning_rate", None), tf.Variable | keras.Variable
        )
        if scheduled:
            alike = [alike[0], *alike[3:]]
        made = [each() for each in draw.sample(alike, draw.randrange(3))]
        self.calls += [type(each).__name__ for each in made]
        if self.own.random() < 0.3:
            made.insert(0, keras.callbacks.LambdaCallback())
        if self.own.random() < 0.2:
            made.append(keras.callbacks.History())
        return made

    # ---- calls ----

    def fit(self):
        draw, arguments = self.shared, self.data()
        if "steps" in arguments:
            arguments["steps_per_epoch"] = arguments.pop("steps")
        is_generator = hasattr(arguments["x"], "__next__")
        epochs = 1 if is_generator else draw.choice([1, 1, 2])
        if draw.random() < 0.2:
            rows = draw.randrange(2, 9)
            arguments["validation_data"] = self.arrays(rows)
            arguments["validation_batch_size"] = 4
        elif "y" in arguments and draw.random() < 0.1:
            arguments["validation_split"] = 0.25
        if "y" in arguments and not self.targets and draw.random() < 0.2:
            if "sample_weight" not in arguments:
                arguments["class_weight"] = dict.fromkeys(range(CLASSES), 2.0)
        self.model.fit(
            **arguments,
            epochs=epochs,
            initial_epoch=draw.choice([0, 0, epochs - 1]),
            shuffle=draw.random() < 0.5,
            verbose=self.own.choice([0, 0, 2]),
            callbacks=self.own_callbacks(),
        )

    def evaluate(self):
        self.model.evaluate(**self.data(), verbose=0, return_dict=self.own.random() < 0.5)

    def predict(self):
        x, _ = self.arrays(self.shared.randrange(1, 20))
        self.model.predict(x, batch_size=self.shared.choice([None, 4]), verbose=0)

    def on_batch(self):
        method = self.shared.choice(["train", "test", "predict"])
        for _ in range(self.shared.randrange(1, 4)):
            x, y = self.arrays(8)
            if method == "predict":
                self.model.predict_on_batch(x)
            else:
                getattr(self.model, f"{method}_on_batch")(x, y)

    def change(self):
        """What a program does between two calls."""
        what = self.shared.choice(["rate", "frozen", "weights", "compile"])
        self.calls.append(what)
        if what == "frozen" and len(self.model.layers) > 1:
            self.model.layers[0].trainable = False
            what = "compile"
        if what == "weights":
            self.model.set_weights(self.model.get_weights())
        if what == "compile":
            self.compile()
        if what == "rate" and isinstance(self.model.optimizer._learning_rate, keras.Variable):
            self.model.optimizer.learning_rate = 0.005


class Subclass(keras.Model):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = blocks

    def call(self, inputs, training=None):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class Batches(PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, index):
        rows = slice(index * self.size, (index + 1) * self.size)
        return self.x[rows], self.y[rows]


def own_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
