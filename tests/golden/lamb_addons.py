"""Writes lamb_addons.json: what TensorFlow Addons' LAMB does, step after step.

The variables, the gradients and the options of each case come from lamb_addons.json itself. The
script runs where TensorFlow Addons runs, which is not where tf_adasum runs; see README.md.
"""

import json
import pathlib
import platform

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

PATH = pathlib.Path(__file__).with_suffix(".json")


def run(case, golden):
    """Returns for each step the variables, and the slots after the last one."""
    variables = {
        name: tf.Variable(values, name=name, dtype="float32")
        for name, values in golden["variables"].items()
    }
    options, sparse, steps = golden["cases"][case]["options"], golden["sparse"], []
    optimizer = tfa.optimizers.LAMB(learning_rate=golden["learning_rate"], **options)
    for step, gradients in enumerate(golden["gradients"]):
        own = {name: tf.constant(gradient, tf.float32) for name, gradient in gradients.items()}
        if case == "learning_rates":
            optimizer.learning_rate = golden["learning_rates"][case][step]
        if case == "sparse":
            name, indices = sparse["variable"], sparse["indices"][step]
            rows = tf.constant(sparse["rows"][step], tf.float32)
            own[name] = tf.IndexedSlices(rows, indices, variables[name].shape)
        optimizer.apply_gradients([(own[name], v) for name, v in variables.items()])
        steps.append(numbers_of(variables))
    slots = {
        slot: numbers_of({name: optimizer.get_slot(v, slot) for name, v in variables.items()})
        for slot in ("m", "v")
    }
    return {"options": options, "steps": steps, **slots}


def numbers_of(arrays):
    """Returns nested lists of the shortest decimals that are these float32 numbers."""
    arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return {
        name: np.reshape([float(str(x)) for x in array.ravel()], array.shape).tolist()
        for name, array in arrays.items()
    }


if __name__ == "__main__":
    golden = json.loads(PATH.read_text())
    golden["versions"] = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
        "tensorflow_addons": tfa.__version__,
    }
    golden["cases"] = {case: run(case, golden) for case in golden["cases"]}
    PATH.write_text(json.dumps(golden).replace('}, "', '},\n"') + "\n")
