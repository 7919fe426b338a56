"""What the worker processes do for `test_custom_loops.py`: steps as one writes them at first."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import message_of, random_data, use_rule, weights_of


def metric_outside(strategy, own):
    """The message of the error of a loop whose metric was created outside of the scope.

    Args:
        strategy: the workers' strategy.
        own: whether the metric is of a class of the user.
    """

    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="largest")
            self.largest = self.add_variable((), "zeros", name="of_rows")

        def update_state(self, values):
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(values)))

    metric = Largest() if own else keras.metrics.Mean(name="average")
    data = tf.data.Dataset.from_tensor_slices(np.arange(8, dtype="float32")).batch(8)

    @tf.function
    def step(rows):
        strategy.run(lambda rows: metric.update_state(rows), args=(rows,))

    def loop():
        for rows in strategy.experimental_distribute_dataset(data):
            step(rows)

    return {"message": message_of(loop)}


def wrong_loops(strategy, rule):
    """Run a step in all ways in which it is not run on each replica; return the errors."""
    use_rule(strategy, rule)
    x, y = random_data(8)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        not_built = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)
    gradients_of_step = [tf.ones(each.shape) for each in model.trainable_variables]
    before = weights_of(model)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def apply(optimizer):
        optimizer.apply(gradients_of_step, model.trainable_variables)

    def apply_in_scope():
        with strategy.scope():
            apply(optimizer)

    ways = {
        "outside": lambda: step(x, y),
        "apply of one that is not built": lambda: apply(not_built),
        "apply, in the scope": apply_in_scope,
    }
    errors = dict.fromkeys(ways, "no error")
    for name, way in ways.items():
        try:
            way()
        except RuntimeError as error:
            errors[name] = str(error)
    strategy.run(step, args=strategy._split_batch((x, y)))
    strategy.check_replicas()
    moved = any(np.any(before[name] != value) for name, value in weights_of(model).items())
    return {"errors": list(errors.values()), "names": list(errors), "moved": moved}


def step_within_a_branch(strategy):
    """The message of the error of an accumulation that takes its steps within a tf.cond."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def in_replica(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(rows) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)

        def step():
            optimizer.apply(gradients, model.trainable_variables)
            return tf.constant(0)

        tf.cond(loss > 0, step, lambda: tf.constant(0))

    step = tf.function(lambda rows: strategy.run(in_replica, args=(rows,)))
    rows, _ = random_data(8)
    return {"message": message_of(lambda: step(tf.constant(rows)))}
