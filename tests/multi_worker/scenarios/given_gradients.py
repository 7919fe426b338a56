"""Optimizers on gradients that are given, without a model."""

import numpy as np
import tensorflow as tf
from support import keras_versions
from support.keras_versions import Variable

from scenarios.basics import scope
from tf_adasum.compat import keras as keras_compat

SHAPES = [(4, 3), (5,)]


def gradients_of(replicas, steps):
    """For each variable [steps, replicas, …], float32."""
    random = np.random.default_rng(11)
    return [
        (random.standard_normal((steps, replicas, *shape)) + 0.5).astype("float32")
        for shape in SHAPES
    ]


def initial_values():
    random = np.random.default_rng(12)
    return [random.standard_normal(shape).astype("float32") for shape in SHAPES]


def new_variables():
    return [Variable(value, name=f"v{index}") for index, value in enumerate(initial_values())]


def built(strategy, make, gradients, is_scaled=False, sparse=False):
    """Make variables and an optimizer; return them, and a function that takes a step.

    Args:
        strategy: the workers' strategy.
        make: a function that returns the optimizer.
        gradients: for each variable [steps, replicas, …].
        is_scaled: whether the gradients get the present scale of a `LossScaleOptimizer`.
        sparse: whether the first two rows of the first gradient are sparse ones.
    """
    gradients = [tf.constant(gradient) for gradient in gradients]
    with scope(strategy):
        variables, optimizer = new_variables(), make()
        keras_compat.build(optimizer, variables)

    @tf.function(autograph=False)
    def step(number):
        def in_replica():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = [gradient[number][replica] for gradient in gradients]
            if is_scaled:
                own = keras_versions.scaled(optimizer, own)
            if sparse:
                own[0] = tf.IndexedSlices(own[0][:2], tf.constant([1, 3]), tf.constant([4, 3]))
            keras_compat.apply(optimizer, own, variables)

        strategy.run(in_replica)

    return variables, optimizer, step


def kept_by(optimizer):
    """What an optimizer keeps; accumulators differ between replicas until they are used."""
    return [
        variable
        for variable in keras_compat.all_variables(optimizer)
        if "accumulator" not in keras_compat.path_of(variable)
    ]
