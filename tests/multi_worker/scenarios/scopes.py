"""What workers do for test_scopes.py: models, optimizers and metrics made outside of the scope.

Every function takes the strategy first.
"""

import contextlib
import warnings

import keras
import numpy as np

from scenarios.basics import build_mlp, random_data, use_rule, weights_of

ARGUMENTS = {"batch_size": 12, "shuffle": False, "verbose": 0}


class WithOwnCompile(keras.Model):
    """A model that keeps an optimizer and makes a metric in a `compile` of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def compile(self, second_optimizer, **kwargs):
        """Keep the optimizer."""
        super().compile(**kwargs)
        self.second_optimizer = second_optimizer

    def call(self, x):
        """One layer."""
        return self.dense(x)


def model_of(layers):
    return keras.Sequential([keras.layers.Input([6]), *layers])


def messages(strategy, folder):
    """The messages of what `fit` says to models of which a part was made outside; "" for none."""
    use_rule(strategy, "adasum")
    data = random_data(24)
    keras.utils.set_random_seed(3 + strategy.workers.rank)
    path = f"{folder}/{strategy.workers.rank}.keras"

    def fit(model):
        model.fit(*data, **ARGUMENTS)

    def model_outside():
        model = build_mlp()
        with strategy.scope():
            model.compile("sgd", "mse")

    def loaded_outside():
        build_mlp().save(path)
        model = keras.models.load_model(path)
        with strategy.scope():
            model.compile("sgd", "mse")

    def only_fit_inside():
        model = build_mlp()
        model.compile("sgd", "mse")
        with strategy.scope():
            fit(model)

    def layer_outside(trainable=True):
        layer = keras.layers.Dense(4)
        layer.build([None, 6])
        layer.set_weights([np.ones([6, 4]), np.ones([4])])
        layer.trainable = trainable
        with strategy.scope():
            model = model_of([layer, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        fit(model)

    def optimizer_outside(built=False):
        optimizer = keras.optimizers.Adam(0.1)
        with strategy.scope():
            model = build_mlp()
        if built:
            optimizer.build(model.trainable_variables)
        with strategy.scope():
            model.compile(optimizer, "mse")
        fit(model)
        strategy.check_replicas()
        steps = optimizer.iterations.numpy()
        if steps != 24 // ARGUMENTS["batch_size"]:
            raise ValueError(f"counted {steps} steps")

    def second_optimizer_outside(built=False):
        optimizer = keras.optimizers.Adam(0.1)
        with strategy.scope():
            model = WithOwnCompile()
            model.build([None, 6])
            if built:
                optimizer.build(model.trainable_variables[:0])
            model.compile(optimizer, optimizer="sgd", loss="mse")
        fit(model)

    def metric_outside():
        metric = keras.metrics.MeanAbsoluteError(name="error")
        with strategy.scope():
            model = build_mlp()
            model.compile("sgd", "mse", metrics=[metric])
        fit(model)

    def data_for_normalization_outside():
        layer = keras.layers.Normalization()
        layer.adapt(data[0])
        with strategy.scope():
            model = model_of([layer, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        fit(model)

    def nothing_inside():
        model = build_mlp()
        model.compile("sgd", "mse")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(model)
        raise ValueError("\n".join(str(each.message) for each in caught))

    calls = {
        "all": nothing_inside,
        "model": model_outside,
        "loaded model": loaded_outside,
        "model, fit inside": only_fit_inside,
        "layer": layer_outside,
        "frozen layer": lambda: layer_outside(trainable=False),
        "optimizer": optimizer_outside,
        "built optimizer": lambda: optimizer_outside(built=True),
        "second optimizer": second_optimizer_outside,
        "built second optimizer": lambda: second_optimizer_outside(built=True),
        "metric": metric_outside,
        "normalization": data_for_normalization_outside,
    }
    found = dict.fromkeys(calls, "")
    for name, call in calls.items():
        try:
            call()
        except (RuntimeError, ValueError) as error:
            found[name] = str(error)
    return found


def fit_with(strategy, compiles_inside, fits_inside):
    """Losses, metrics and weights of a model that is built inside of the scope."""
    use_rule(strategy, "adasum")
    keras.utils.set_random_seed(4)
    x, y = random_data(24)
    with strategy.scope():
        model = build_mlp()
    with strategy.scope() if compiles_inside else contextlib.nullcontext():
        model.compile("adam", "mse", metrics=["mae"])
    with strategy.scope() if fits_inside else contextlib.nullcontext():
        history = model.fit(x, y, epochs=2, validation_data=(x, y), **ARGUMENTS).history
        predicted = model.predict(x, verbose=0)
    return {**history, **weights_of(model), "predicted": predicted}
