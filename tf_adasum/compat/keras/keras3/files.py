"""Hooks into saving of models with Keras 3."""

import os

from tf_adasum import atomic_files
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.private_names import HDF5, legacy_h5_format, saving_lib
from tf_adasum.compat.keras.optimizers import is_ours

SAVING_IN_SCOPE = "saving on one worker within strategy.scope(): save outside of the scope"


@hooks.replaces(saving_lib, "get_attr_skipset", feature=SAVING_IN_SCOPE)
def get_attr_skipset(original, obj_type):
    """Let a single worker save a model in the strategy's scope.

    When Keras saves or loads an optimizer for the first time in a process, Keras creates a
    temporary optimizer. In the scope, all workers create variables together, so a worker that saves
    alone would wait for the others. This hook lets each worker create these variables separately.
    """
    with tensorflow_compat.making_own_variables():
        return original(obj_type)


@hooks.replaces(legacy_h5_format, "save_model_to_hdf5", feature=HDF5)
def save_hdf5(original, model, filepath, overwrite=True, include_optimizer=True):
    """Write to a temporary file and rename it, because only one worker can open an HDF5 file."""
    is_path = isinstance(filepath, str | os.PathLike) and atomic_files.is_local(filepath)
    if not is_ours(getattr(model, "distribute_strategy", None)) or not (overwrite and is_path):
        return original(model, filepath, overwrite, include_optimizer)
    os.makedirs(os.path.dirname(os.path.realpath(filepath)), exist_ok=True)
    with atomic_files.replacing(filepath) as unfinished:
        return original(model, unfinished, overwrite, include_optimizer)
