"""What workers do for test_scopes.py: models, optimizers and metrics made outside of the scope.

Every function takes the strategy first.
"""

import contextlib
import warnings

import keras
from keras.layers import Dense, Normalization

from scenarios.basics import build_mlp, message_of, random_data, use_rule

ARGUMENTS = {"batch_size": 12, "shuffle": False, "verbose": 0}


def messages(strategy):
    """The error of each program that makes a part of a model outside of the scope; "" for none."""
    use_rule(strategy, "adasum")
    data = random_data(24)
    keras.utils.set_random_seed(3 + strategy._workers.rank)

    def compile_inside(model, *given, **options):
        with strategy.scope():
            model.compile(*given, loss="mse", **options)

    def fit(model, *given, **options):
        compile_inside(model, *(given or ["sgd"]), **options)
        model.fit(*data, **ARGUMENTS)

    def inside(make, *given):
        with strategy.scope():
            return make(*given)

    def with_layer(layer):
        fit(inside(keras.Sequential, [keras.layers.Input([6]), layer, Dense(1)]))

    def not_compiled_inside(fits_inside):
        model = build_mlp()
        model.compile("sgd", "mse")
        with (
            strategy.scope() if fits_inside else contextlib.nullcontext(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("error", message=".*outside the scope")
            model.fit(*data, **ARGUMENTS)

    def layer_outside(trainable):
        layer = Dense(4, kernel_initializer="ones", trainable=trainable)
        layer.build([None, 6])
        with_layer(layer)

    def optimizer_outside(built):
        optimizer, model = keras.optimizers.Adam(0.1), inside(build_mlp)
        if built:
            optimizer.build(model.trainable_variables)
        fit(model, optimizer)
        strategy.check_replicas()
        assert optimizer.iterations.numpy() == 24 // ARGUMENTS["batch_size"]

    def metric_outside():
        metric = keras.metrics.MeanAbsoluteError(name="error")
        fit(inside(build_mlp), "sgd", metrics=[metric])

    def adapted_outside():
        layer = Normalization()
        layer.adapt(data[0])
        with_layer(layer)

    calls = {
        "all": lambda: not_compiled_inside(fits_inside=False),
        "model": lambda: compile_inside(build_mlp(), "sgd"),
        "model, fit inside": lambda: not_compiled_inside(fits_inside=True),
        "layer": lambda: layer_outside(trainable=True),
        "frozen layer": lambda: layer_outside(trainable=False),
        "optimizer": lambda: optimizer_outside(built=False),
        "built optimizer": lambda: optimizer_outside(built=True),
        "metric": metric_outside,
        "normalization": adapted_outside,
    }
    return {name: message_of(call) for name, call in calls.items()}
