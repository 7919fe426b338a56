"""What the worker processes do for `test_multi_optimizer.py`: one optimizer beside several."""

import os

import keras
import numpy as np

from scenarios.basics import compiled, message_of, random_data, scope, use_rule, weights_of
from tf_adasum import callbacks, optimizers
from tf_adasum.aggregation import rules

PATTERN = ".*one/.*"
RULES = {
    "of each optimizer": rules.Adasum({PATTERN: "first", ".*two/.*": "second"}),
    "across": rules.Adasum({".*kernel": "kernels"}),
    "model": rules.Adasum("model"),
    "adacons": rules.AdaCons(granularity="variable", rescale=True),
}


def multi(make):
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(make(), {PATTERN: make()}))


def adam():
    return keras.optimizers.Adam(0.05)


def delta(steps):
    return optimizers.DeltaAdasum(keras.optimizers.SGD(0.05, momentum=0.9), local_steps=steps)


MAKE = {
    "plain": lambda together: together(adam),
    "accumulated": lambda together: together(
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    ),
    "scaled": lambda together: keras.optimizers.LossScaleOptimizer(
        together(adam), initial_scale=64.0
    ),
    "delta of 3": lambda together: together(lambda: delta(3)),
}


def by_function(make):
    first, second = make(), make()
    return keras.optimizers.MultiOptimizer(
        lambda variable: first if "one" in variable.path else second
    )


TOGETHER = {
    "one": lambda make: make(),
    "multi": multi,
    "function": by_function,
}


def make_model(strategy, optimizer):
    def make():
        first = keras.layers.Dense(8, "relu", name="one")
        return [keras.Input([6]), first, keras.layers.Dense(1, name="two")]

    return compiled(strategy, make, optimizer)


def train(strategy, folder, together, kind, rule, way):
    """Return the weights after five epochs; after two, the model may be saved and loaded."""
    use_rule(strategy, RULES.get(rule, rule))
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{strategy.rank}.keras"
    x, y = random_data(48)
    options = {"batch_size": 16, "verbose": 0, "shuffle": False}
    model = make_model(strategy, lambda: MAKE[kind](TOGETHER[together]))
    model.fit(x, y, epochs=2, **options)
    if way == "loaded":
        model.save(path)
        with scope(strategy):
            model = keras.models.load_model(path)
    model.fit(x, y, epochs=3, **options)
    strategy._check_model(model)
    return weights_of(model)


def refused(strategy, case):
    """The message of the error with which a combination is refused."""
    wrapped = {
        "delta of several": lambda: optimizers.DeltaAdasum(multi(adam)),
        "delta of a function": lambda: optimizers.DeltaAdasum(TOGETHER["function"](adam)),
        "adascale of several": lambda: optimizers.AdaScale(multi(adam)),
        "several adascales": lambda: multi(lambda: optimizers.AdaScale(keras.optimizers.SGD(0.1))),
    }
    make = wrapped.get(case, lambda: multi(adam))
    rule = "mean" if "adascale" in case else "adasum"
    use_rule(strategy, RULES.get(case, rule))
    tracker = [callbacks.OrthogonalityTracker()] if case == "tracker" else []

    def fit():
        model = make_model(strategy, make)
        model.fit(np.ones([8, 6]), np.ones([8, 1]), verbose=0, callbacks=tracker)

    return {"message": message_of(fit)}
