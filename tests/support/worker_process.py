"""One worker process of a `WorkerGroup`: makes a strategy, then runs scenarios one by one."""

import gc
import importlib
import json
import os
import sys
import traceback

import keras
import numpy as np
import tensorflow as tf


def make_strategy(name, options):
    timeouts = tf.distribute.experimental.CommunicationOptions(timeout_seconds=60)
    if name == "stock":
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=timeouts)
    import tf_adasum

    return tf_adasum.AdasumMirroredStrategy(communication_options=timeouts, **options)


def as_made(strategy):
    """Returns a function that gives the strategy back the rule it has now."""
    if not hasattr(strategy, "_scheme"):  # TensorFlow's own
        return lambda: None
    from tf_adasum.seams import tensorflow as tensorflow_seam

    rule, scheme = strategy._aggregation, strategy._scheme

    def restore():
        strategy._aggregation = rule
        strategy._scheme = tensorflow_seam.cross_device_ops(strategy.extended).scheme = scheme

    return restore


def find_scenario(name):
    """Returns the function that "module.function" names; one without module is in `scenarios`."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"scenarios.{module or 'basics'}"), function)


def attempt(reply, function):
    """Calls the function, and reports the exception that it raised, or None."""
    error = None
    try:
        function()
    except Exception:
        error = traceback.format_exc()
    reply.write(json.dumps({"error": error}) + "\n")
    reply.flush()


def main():
    reply = os.fdopen(int(sys.argv[1]), "w")
    strategies = []
    attempt(reply, lambda: strategies.append(make_strategy(sys.argv[2], json.loads(sys.argv[3]))))
    restore = as_made(strategies[0]) if strategies else None
    for line in sys.stdin:
        request = json.loads(line)

        def run(request=request):
            keras.backend.clear_session()
            gc.collect()  # models of earlier requests; Keras 3 has done it
            restore()
            scenario = find_scenario(request["scenario"])
            np.savez(request["file"], **scenario(strategies[0], **request["arguments"]))

        attempt(reply, run)


if __name__ == "__main__":
    main()
