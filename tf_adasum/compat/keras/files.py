"""Hooks into saving of models, for Keras 2 and 3."""

import os

from tf_adasum import atomic_files
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks, private_names
from tf_adasum.compat.keras.optimizers import is_ours

WHOLE_FILES = "a complete file if several workers save a model to the same path"


@hooks.replaces(private_names.saving_lib, "save_model", "save_weights_only", feature=WHOLE_FILES)
def save(original, model, filepath, *args, **kwargs):
    """Write to a temporary file and rename it, because several workers may save to the same path.

    Without this hook, most files that two workers save at the same time are damaged. Keras creates
    a temporary optimizer, to list its attributes. In the scope of the strategy, a worker that saves
    alone would wait for the others to create it, too.
    """
    if not is_ours(getattr(model, "distribute_strategy", None)):
        return original(model, filepath, *args, **kwargs)
    path = os.fspath(filepath) if isinstance(filepath, str | os.PathLike) else ""
    is_file = path.endswith((".keras", ".weights.h5")) and atomic_files.is_local(path)
    in_parts = any(args) or kwargs.get("max_shard_size") is not None
    with tensorflow_compat.making_own_variables():
        if in_parts or not is_file:
            return original(model, filepath, *args, **kwargs)
        with atomic_files.replacing(filepath) as unfinished:
            return original(model, unfinished, *args, **kwargs)
