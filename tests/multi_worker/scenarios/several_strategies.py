"""Several strategies in the same processes, each with its rule."""

import time

import numpy as np
import tensorflow as tf

import tf_adasum
from scenarios.basics import compiled, dense, message_of, reduction


def combining(strategy):
    """Return a function that combines equal gradients, and returns the result."""
    gradients = [tf.fill([strategy.num_replicas_in_sync, 1], 3.0)]
    step = reduction(strategy, gradients, strategy.gradient_reduction)
    return lambda: strategy.experimental_local_results(step()[0])[0].numpy().item()


def fit(strategy):
    model = compiled(strategy, dense(2, 1))
    model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=8, verbose=0)


def made_in_turns(first):
    """Return what strategies combine that are made one after the other, and what they should.

    Also the message of the error if the workers' rules differ.
    """
    rules, of_first, combined = ["adasum", "sum"], combining(first), []
    fit(first)
    for number in range(20):
        time.sleep(0.5 * (number < 5 and number % 2 == first.rank))  # the other one is ahead
        strategy = tf_adasum.AdasumMirroredStrategy(aggregation=rules[number % 2])
        combined.append(combining(strategy)())
    fit(strategy)
    combined.append(of_first())
    own = rules[first.rank]
    message = message_of(lambda: tf_adasum.AdasumMirroredStrategy(aggregation=own))
    combined.append(of_first())
    expected = [3.0, 3.0 * first.num_replicas_in_sync] * 10 + [3.0, 3.0]
    return {"combined": combined, "expected": expected, "message": message}
