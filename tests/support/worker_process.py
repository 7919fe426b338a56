"""The processes of a `WorkerGroup`, which run scenarios."""

import gc
import importlib
import multiprocessing
import os
import random
import traceback

import numpy as np


def make_strategy(options):
    import tensorflow as tf

    import tf_adasum

    timeouts = tf.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    return tf_adasum.AdasumMirroredStrategy(communication_options=timeouts, **options)


def restorer_of_rule(strategy):
    """Return a function that gives the strategy back the rule and the settings it has now."""
    from tf_adasum.compat import tensorflow as tensorflow_compat

    rule, scheme, nonfinite = strategy._aggregation, strategy._scheme, strategy._nonfinite

    def restore():
        strategy._aggregation, strategy._nonfinite = rule, nonfinite
        strategy._scheme = tensorflow_compat.cross_device_ops(strategy.extended).scheme = scheme

    return restore


def answer(pipe, function):
    """Send the traceback of the exception that the function raised, or None; and what it returned.

    Whatever the exception is, the test shows it.
    """
    error = returned = None
    try:
        returned = function()
    except Exception:
        error = traceback.format_exc()
    pipe.send((error, returned))


def use_environment(environment, log):
    """Set the environment of this fork, and redirect its output to a file."""
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    # Forks of one process would draw the same numbers.
    random.seed()
    np.random.seed()
    multiprocessing.set_start_method(None, force=True)  # as in a program of a user


def main(pipe, log, environment, options):
    """Answer requests until the other end of the pipe is closed.

    Args:
        pipe: a `multiprocessing` connection. The first answer comes when the strategy has been
            made. Then each request is the names of a module and of a function, and the function's
            arguments; it is answered with the arrays that the function returns.
        log: path of a file for all output.
        environment: dict, the whole environment.
        options: further arguments of AdasumMirroredStrategy.
    """
    use_environment(environment, log)
    import keras

    strategy = restore = None

    def make():
        nonlocal strategy, restore
        strategy = make_strategy(options)
        restore = restorer_of_rule(strategy)

    def run(module, function, arguments):
        keras.backend.clear_session()
        gc.collect()  # models of earlier requests; Keras 3 has done it
        strategy.extended._created.clear()  # something may still hold their variables
        restore()
        scenario = getattr(importlib.import_module(module), function)
        results = scenario(strategy, **arguments)
        arrays = {each: np.asarray(value) for each, value in results.items()}
        assert not any(array.dtype == object for array in arrays.values()), "plain arrays"
        return arrays

    answer(pipe, make)
    gc.freeze()  # imported objects stay: the collection before each scenario need not scan them
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        answer(pipe, lambda: run(*request))  # noqa: B023 - called at once
