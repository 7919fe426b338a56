"""The two lanes of the tests: Keras 3 with TensorFlow 2.21, Keras 2 with TensorFlow 2.15.

Tests take from here what has another name in each. What Keras 2 has no notion of is listed here by
name, with the reason why its tests are skipped there.
"""

import keras
import tensorflow as tf

from tf_adasum import keras_seam

IS_KERAS_2 = keras.__version__.startswith("2.")

if IS_KERAS_2:
    Variable = tf.Variable
    PyDataset = keras.utils.Sequence
    LossScaleOptimizer = keras.mixed_precision.LossScaleOptimizer
else:
    Variable = keras.Variable
    PyDataset = keras.utils.PyDataset
    LossScaleOptimizer = keras.optimizers.LossScaleOptimizer

# Files under tests/ that are not even read.
FILES_OF_KERAS_3 = {
    "unit/test_seam_names.py": "private names of Keras 3; see test_seam_names_keras2.py",
    "unit/test_seam_behaviour.py": "what Keras 3 does that the seam mends",
    "unit/test_lamb.py": "LAMB of our own; there it is TensorFlow Addons', see test_addons.py",
}

# Tests by the end of their id, up to the parameters: "file.py::test" or "file.py::test[a-b]".
ABSENT_IN_KERAS_2 = {}


def reason_to_skip(node_id):
    """Returns why a test is skipped in this lane; None if it is not."""
    if not IS_KERAS_2:
        return None
    for name, reason in ABSENT_IN_KERAS_2.items():
        if node_id.endswith(name) or node_id.partition("[")[0].endswith(name):
            return f"Keras 2: {reason}"
    return None


def loss_scale_of(optimizer):
    """Returns the current scale of a `LossScaleOptimizer`, as a tensor."""
    return tf.convert_to_tensor(optimizer.loss_scale if IS_KERAS_2 else optimizer.dynamic_scale)


def scale_loss(optimizer, loss):
    """Returns a loss as an optimizer wants it."""
    if not IS_KERAS_2:
        return optimizer.scale_loss(loss)
    is_scaling = isinstance(optimizer, LossScaleOptimizer)
    return optimizer.get_scaled_loss(loss) if is_scaling else loss


def copies_of(strategy, variable):
    """Returns the variables on the local replicas that a Keras variable stands for."""
    return strategy.experimental_local_results(keras_seam.tensorflow_variable(variable))
