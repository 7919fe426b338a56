"""What workers do for test_scopes.py: what is made, or taken a step, outside of scope and replica.

Every function takes the strategy first.
"""

import contextlib
import warnings

import keras
import tensorflow as tf
from keras.layers import Dense, Normalization

from scenarios.basics import build_mlp, message_of, random_data
from scenarios.unusual_models import Largest

ARGUMENTS = {"batch_size": 12, "shuffle": False, "verbose": 0}


def messages(strategy):
    """The error of each program that makes a part of a model outside of the scope; "" for none."""
    data = random_data(24)
    keras.utils.set_random_seed(3 + strategy.rank)

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

    def metric_of_a_loop(metric):
        dataset = tf.data.Dataset.from_tensor_slices(data[1]).batch(8)

        @tf.function
        def step(rows):
            strategy.run(lambda rows: metric.update_state(rows, rows), args=(rows,))

        for rows in strategy.experimental_distribute_dataset(dataset):
            step(rows)

    def loop(is_built=True, apply_in=contextlib.nullcontext, takes_step=lambda step: step()):
        model, optimizer = inside(build_mlp), inside(keras.optimizers.Adam, 0.1)
        if is_built:
            inside(optimizer.build, model.trainable_variables)

        def step():
            with apply_in():
                gradients = [tf.ones(each.shape) for each in model.trainable_variables]
                optimizer.apply(gradients, model.trainable_variables)
            return tf.constant(0)

        takes_step(step)

    def within_a_branch(step):
        def in_replica(number):
            return tf.cond(number > 0, step, lambda: tf.constant(0))

        tf.function(lambda number: strategy.run(in_replica, args=(number,)))(tf.constant(1))

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
        "metric of a loop": lambda: metric_of_a_loop(keras.metrics.Mean(name="average")),
        "own metric of a loop": lambda: metric_of_a_loop(Largest()),
        "step": loop,
        "step that builds": lambda: loop(is_built=False),
        "step in the scope": lambda: loop(apply_in=strategy.scope),
        "step within a branch": lambda: loop(takes_step=within_a_branch),
        "step of each replica": lambda: loop(takes_step=strategy.run),
    }
    return {name: message_of(call) for name, call in calls.items()}
