"""DeltaAdasum on gradients that are given, and the same by one Keras optimizer per replica."""

from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from support import oracle
from support.keras_versions import copies_of

from scenarios.basics import compiled, on_replicas, random_data
from scenarios.given_gradients import built, gradients_of, initial_values, kept_by, new_variables
from tf_adasum import optimizers
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat

STEPS = 8

OPTIMIZERS = {
    "sgd": lambda **options: keras.optimizers.SGD(0.1, **options),
    "momentum": lambda **options: keras.optimizers.SGD(0.1, momentum=0.9, **options),
    "adam": lambda **options: keras.optimizers.Adam(0.1, **options),
    "nadam": lambda **options: keras.optimizers.Nadam(0.1, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(0.1, weight_decay=0.1, **options),
    "lamb": lambda **options: optimizers.LAMB(0.1, weight_decay=0.01, **options),
    "schedule": lambda **options: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5), momentum=0.9, **options
    ),
}


def counting(strategy, counts):
    """A context in which every reduction of gradients that is carried out marks a list."""
    cross_device_ops = tensorflow_compat.cross_device_ops(strategy.extended)
    original = cross_device_ops.combine_gradients

    def count(value):
        counts.append(1)
        return value

    def counted(gradients, *others):
        gradients = [list(own) for own in gradients]
        first = gradients[0][0]
        marked = tf.numpy_function(count, [first], first.dtype)
        gradients[0][0] = tf.ensure_shape(marked, first.shape)
        return original(gradients, *others)

    return mock.patch.object(cross_device_ops, "combine_gradients", counted)


def slots_of(optimizer):
    return [variable for variable in kept_by(optimizer) if len(variable.shape)]


def steps(strategy, name, steps=STEPS, local_steps=1, end=False, options=None):
    """Take steps on each replica's own gradients; return weights and slots of each local replica.

    Args:
        strategy: the workers' strategy.
        name: the optimizer's.
        steps: how many.
        local_steps: of DeltaAdasum.
        end: whether the last local steps are combined.
        options: of the inner optimizer.
    """
    gradients = gradients_of(strategy.num_replicas_in_sync, steps)

    def make():
        return optimizers.DeltaAdasum(OPTIMIZERS[name](**(options or {})), local_steps=local_steps)

    variables, optimizer, step = built(strategy, make, gradients)
    counts = []
    with counting(strategy, counts):
        for number in range(steps):
            step(tf.constant(number))
        if end:
            optimizer.synchronize()
    return {
        "reductions": len(counts),
        "iterations": optimizer.iterations.numpy(),
        **on_replicas(strategy, variables, "weight"),
        **on_replicas(strategy, slots_of(optimizer.inner_optimizer), "slot"),
    }


def reference(replicas, name, local_steps=1, steps=STEPS, options=None, end=False):
    """One Keras optimizer per replica; after every so many steps float64 Adasum of the way gone.

    Returns:
        The weights of each replica, and the slots of each replica: lists of lists of arrays.
    """
    gradients = gradients_of(replicas, steps)
    start = initial_values()
    weights = [new_variables() for _ in range(replicas)]
    each = [OPTIMIZERS[name](**(options or {})) for _ in range(replicas)]
    accumulation = (options or {}).get("gradient_accumulation_steps", 1)
    for optimizer, own in zip(each, weights, strict=True):
        keras_compat.build(optimizer, own)
    for number in range(steps):
        for replica, (optimizer, own) in enumerate(zip(each, weights, strict=True)):
            keras_compat.apply(optimizer, [tf.constant(g[number, replica]) for g in gradients], own)
        is_last = end and number == steps - 1
        if (number + 1) % (local_steps * accumulation) == 0 or is_last:
            for index, value in enumerate(start):
                deltas = [(own[index].numpy().astype("float64") - value).ravel() for own in weights]
                start[index] = value + oracle.adasum(deltas).reshape(value.shape)
                for own in weights:
                    own[index].assign(start[index])
    slots = [[v.numpy() for v in slots_of(optimizer)] for optimizer in each]
    return [[v.numpy() for v in own] for own in weights], slots


def fit_and_evaluate(strategy):
    """Two epochs of five steps with three local steps each, then `evaluate` and `predict`.

    The model begins with moving statistics, its variables 2 and 3, of six features.

    Returns:
        The weights of the local replicas before each validation; and after a single step, before
        and after `evaluate` and `predict`; what these return, and what a model of those weights
        returns without a strategy.
    """

    def layers():
        return [keras.layers.Input([6]), keras.layers.BatchNormalization(), keras.layers.Dense(1)]

    def make():
        return optimizers.DeltaAdasum(keras.optimizers.Adam(0.02), local_steps=3)

    model = compiled(strategy, layers, make)
    x, y = random_data(80, seed=3)
    results, options = {}, {"batch_size": 16, "verbose": 0}

    def keep(name):
        copies = zip(*(copies_of(strategy, v) for v in model.variables), strict=True)
        results[name] = np.array([np.concatenate([v.numpy().ravel() for v in c]) for c in copies])

    callback = keras.callbacks.LambdaCallback(
        on_test_begin=lambda logs: keep(f"validation {len(results)}")
    )
    model.fit(x, y, epochs=2, validation_data=(x, y), callbacks=[callback], **options)
    alone = compiled(None, layers)
    for name, arguments in ("evaluate", (x, y)), ("predict", (x,)):
        model.train_on_batch(x[:16], y[:16])
        keep(f"before {name}")
        results[name] = getattr(model, name)(*arguments, **options)
        keep(f"after {name}")
        alone.set_weights(model.get_weights())
        results[f"{name} alone"] = getattr(alone, name)(*arguments, **options)
    return results
