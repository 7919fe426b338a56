"""One worker process of a `WorkerGroup`: makes a strategy, then runs scenarios one by one.

    python worker_process.py PIPE STRATEGY OPTIONS

Each line of its standard input asks for a scenario: JSON with the names of a module and of a
function, the function's arguments, and the file for the arrays that it returns. After each one, and
first of all when the strategy has been made, it answers over the pipe with a line of JSON.
"""

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


def restorer_of_rule(strategy, name):
    """Return a function that gives the strategy back the rule it has now."""
    if name == "stock":
        return lambda: None
    from tf_adasum.compat import tensorflow as tensorflow_compat

    rule, scheme = strategy._aggregation, strategy._scheme

    def restore():
        strategy._aggregation = rule
        strategy._scheme = tensorflow_compat.cross_device_ops(strategy.extended).scheme = scheme

    return restore


def answer(pipe, function):
    """Call the function, and write the traceback of the exception that it raised, or null."""
    error = None
    try:
        function()
    except Exception:  # whatever it is, the test shows it
        error = traceback.format_exc()
    pipe.write(json.dumps({"error": error}) + "\n")
    pipe.flush()


def main():
    pipe, name, options = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    answers = os.fdopen(pipe, "w")
    made = []
    answer(answers, lambda: made.append(make_strategy(name, options)))
    restore = restorer_of_rule(made[0], name) if made else None
    for line in sys.stdin:
        request = json.loads(line)

        def run(request=request):
            keras.backend.clear_session()
            gc.collect()  # models of earlier requests; Keras 3 has done it
            restore()
            scenario = getattr(importlib.import_module(request["module"]), request["function"])
            np.savez(request["file"], **scenario(made[0], **request["arguments"]))

        answer(answers, run)


if __name__ == "__main__":
    main()
