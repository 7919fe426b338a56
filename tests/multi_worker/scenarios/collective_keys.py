"""What the worker processes do for `test_collective_keys.py`: errors that cut collectives off."""

import numpy as np
import tensorflow as tf


def continue_after_errors(strategy, in_context):
    """Steps of three collectives; some raise on all workers, each at its own moment."""
    random = np.random.default_rng(0)  # the same on all workers
    own = np.random.default_rng(strategy.cluster_resolver.task_id)

    @tf.function
    def step(x, is_bad, turns):
        waited = tf.while_loop(lambda i: i < turns, lambda i: i + 1, [tf.constant(0)])[0]
        with tf.control_dependencies([waited]):
            tf.debugging.assert_equal(is_bad, False)

        def in_replica(x):
            for _ in range(3):
                x = tf.distribute.get_replica_context().all_reduce("MEAN", x + 1.0)
            return x

        return strategy.run(in_replica, args=(x,))

    def run(number):
        is_bad, turns = tf.constant(random.random() < 0.3), tf.constant(int(own.integers(5000)))
        start = tf.fill([8], float(number))
        return strategy.experimental_local_results(step(start, is_bad, turns))[0].numpy()

    sums, errors = [], 0
    for number in range(60):
        try:
            if in_context and number % 2:
                with strategy.working_together():
                    values = [run(number) for _ in range(3)]
            else:
                values = [run(number)]
        except tf.errors.InvalidArgumentError:
            errors += 1
        else:
            sums += [value - number for value in values]
    return {"sums": sums, "errors": errors}
