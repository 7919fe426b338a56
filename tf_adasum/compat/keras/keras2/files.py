"""Hooks into saving of models with Keras 2."""

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.calls import are_calls_under_way
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.private_names_keras2 import legacy_saving, saving_lib


@hooks.replaces(saving_lib, "save_model", "save_weights_only")
@hooks.replaces(legacy_saving, "save_model", "save_weights")
@hooks.replaces(keras.Model, "get_weights")
@hooks.replaces(tf.train.Checkpoint, "_write")
def read_alone(original, *args, **kwargs):
    """Let a single worker read all variables outside of `fit`, for example to save them.

    Without this hook, a worker would need the other workers to read statistics that replicas
    compute from their own rows. In `fit`, all workers read the variables together.
    """
    if are_calls_under_way():
        return original(*args, **kwargs)
    with tensorflow_compat.reading_alone():
        return original(*args, **kwargs)
