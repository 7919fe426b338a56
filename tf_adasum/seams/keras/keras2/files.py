"""Files of models with Keras 2, and what reads all variables of one."""

import keras
import tensorflow as tf

from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras.files import load
from tf_adasum.seams.keras.fit import are_calls_under_way
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras2.private_names import legacy_saving, saving_lib

# It reads what is no zip file, as one that is cut off is none.
hooks.replaces(legacy_saving, "load_model")(load)


@hooks.replaces(saving_lib, "save_model", "save_weights_only", outermost=True)
@hooks.replaces(legacy_saving, "save_model", "save_weights", outermost=True)
@hooks.replaces(keras.Model, "get_weights", outermost=True)
@hooks.replaces(tf.train.Checkpoint, "_write", outermost=True)
def read_alone(original, *args, **kwargs):
    """Let one worker read all variables alone, for example to save them; in `fit`, all workers do.

    It reads the statistics that replicas compute from their own rows, which needs all workers.
    """
    if are_calls_under_way():
        return original(*args, **kwargs)
    with tensorflow_seam.reading_alone():
        return original(*args, **kwargs)
