"""Writes lamb_addons.json: what TensorFlow Addons' LAMB does, step after step.

It runs where TensorFlow Addons runs, which is not where tf_adasum runs; see README.md.
"""

import json
import pathlib
import platform

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

STEPS = 5
VARIABLES = {
    "embedding/table": (6, 2),
    "encoder/kernel": (4, 3),
    "encoder/bias": (3,),
    "encoder/layer_norm/gamma": (3,),
    "head/kernel": (3, 2),
    "head/bias": (2,),
    "head/scale": (),
    "zeros/kernel": (2, 2),  # ‖w‖ = 0 in the first step
}
SPARSE = "embedding/table"
INDICES = [[0, 3, 3], [1, 1, 1, 5], [2], [3, 0, 3, 4], [5, 4]]  # of each step, row 3 twice

CASES = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.1},
    "exclude_from_weight_decay": {
        "weight_decay": 0.1,
        "exclude_from_weight_decay": ["bias", "layer_norm"],
    },
    "exclude_from_layer_adaptation": {
        "weight_decay": 0.1,
        "exclude_from_layer_adaptation": ["^encoder/.*(kernel|gamma)", "scale"],
    },
    "exclude_from_both": {
        "weight_decay": 0.1,
        "exclude_from_weight_decay": ["bias", "layer_norm"],
        "exclude_from_layer_adaptation": ["kernel"],
    },
    "betas": {"beta_1": 0.7, "beta_2": 0.95},
    "epsilon": {"epsilon": 0.03, "weight_decay": 0.01},
    "learning_rates": {"weight_decay": 0.01},
    "sparse": {"weight_decay": 0.01},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.2},
    "global_clipnorm": {"global_clipnorm": 0.7, "weight_decay": 0.01},
}
LEARNING_RATE = 0.05
LEARNING_RATES = {"learning_rates": [0.2, 0.1, 0.05, 0.01, 0.3]}


def inputs():
    """The values of all variables, and for each step their gradients and the sparse rows."""
    random = np.random.RandomState(0)
    values = {name: random.standard_normal(shape) for name, shape in VARIABLES.items()}
    values["zeros/kernel"] = np.zeros_like(values["zeros/kernel"])
    gradients = []
    for step in range(STEPS):
        lengths = 10.0 ** random.uniform(-3, 1, len(VARIABLES))
        own = {
            name: length * random.standard_normal(shape)
            for length, (name, shape) in zip(lengths, VARIABLES.items(), strict=True)
        }
        if step == 0:
            own["head/scale"] *= 0  # ‖u‖ = 0 without weight decay
        gradients.append(own)
    rows = [random.standard_normal([len(own), *VARIABLES[SPARSE][1:]]) for own in INDICES]
    return values, gradients, rows


def run(case, options, values, gradients, rows):
    """Returns for each step the variables, and the slots after the last one."""
    variables = {name: tf.Variable(v, name=name, dtype="float32") for name, v in values.items()}
    optimizer = tfa.optimizers.LAMB(learning_rate=LEARNING_RATE, **options)
    steps = []
    for step, own in enumerate(gradients):
        optimizer.learning_rate = LEARNING_RATES.get(case, [LEARNING_RATE] * STEPS)[step]
        own = {name: tf.constant(gradient, tf.float32) for name, gradient in own.items()}
        if case == "sparse":
            own[SPARSE] = tf.IndexedSlices(
                tf.constant(rows[step], tf.float32), INDICES[step], VARIABLES[SPARSE]
            )
        optimizer.apply_gradients([(own[name], v) for name, v in variables.items()])
        steps.append(numbers_of(variables))
    slots = {
        slot: numbers_of({name: optimizer.get_slot(v, slot) for name, v in variables.items()})
        for slot in ("m", "v")
    }
    return {"options": options, "steps": steps, **slots}


def numbers(array):
    """Nested lists of the shortest decimals that are these float32 numbers."""
    array = np.asarray(array, np.float32)
    return np.reshape([float(str(x)) for x in array.ravel()], array.shape).tolist()


def numbers_of(arrays):
    return {name: numbers(array) for name, array in arrays.items()}


if __name__ == "__main__":
    values, gradients, rows = inputs()
    golden = {
        "made_by": "python lamb_addons.py",
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "tensorflow": tf.__version__,
            "tensorflow_addons": tfa.__version__,
        },
        "variables": numbers_of(values),
        "gradients": [numbers_of(own) for own in gradients],
        "sparse": {"variable": SPARSE, "indices": INDICES, "rows": [numbers(own) for own in rows]},
        "learning_rate": LEARNING_RATE,
        "learning_rates": LEARNING_RATES,
        "cases": {name: run(name, own, values, gradients, rows) for name, own in CASES.items()},
    }
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(golden, indent=None).replace('}, "', '},\n"') + "\n")
