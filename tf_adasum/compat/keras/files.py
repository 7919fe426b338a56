"""Hooks into saving and loading of models, for Keras 2 and 3."""

import os
import zipfile

import tensorflow as tf

from tf_adasum import atomic_files
from tf_adasum.compat.keras.generation import hooks, private_names
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.errors import see

WHOLE_FILES = "complete files if a process is killed while it saves a model"
DAMAGED_FILES = "errors that name a damaged file of a model"

# Text of an error of zipfile. Some versions of Keras change the type of this error.
BAD_ARCHIVE = "Bad CRC-32"


@hooks.replaces(private_names.saving_lib, "save_model", "save_weights_only", feature=WHOLE_FILES)
def save(original, model, filepath, *args, **kwargs):
    """Write to a temporary file and rename it, so that a killed process leaves no incomplete file.

    Without this hook, `Model.save`, `Model.save_weights` and `ModelCheckpoint` would overwrite an
    earlier complete file while they write.
    """
    is_path = isinstance(filepath, str | os.PathLike)
    in_parts = any(args) or kwargs.get("max_shard_size") is not None
    if (
        not is_ours(getattr(model, "distribute_strategy", None))
        or not is_path
        or in_parts
        or not atomic_files.is_local(filepath)
        or not os.fspath(filepath).endswith((".keras", ".weights.h5"))
    ):
        return original(model, filepath, *args, **kwargs)
    with atomic_files.replacing(filepath) as unfinished:
        return original(model, unfinished, *args, **kwargs)


@hooks.replaces(private_names.saving_lib, "load_model", "load_weights_only", feature=DAMAGED_FILES)
def load(original, *args, **kwargs):
    """If a file is damaged, name it in the error. If it is missing, say which worker saves it."""
    of_model = original.__name__ == "load_weights_only"
    try:
        return original(*args, **kwargs)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, ValueError) and BAD_ARCHIVE not in str(error):
            raise
        strategy = args[0].distribute_strategy if of_model else tf.distribute.get_strategy()
        path = str(args[1 if of_model else 0])
        if isinstance(error, FileNotFoundError) and is_ours(strategy):
            _refuse_missing(path, strategy.workers, error)
        is_missing = getattr(error, "errno", None)
        if not is_ours(strategy) or is_missing or path in str(error):
            raise
        raise OSError(
            f"{path} cannot be read, because it is cut off or damaged: {error} {see('TFA-605')}"
        ) from error


def _refuse_missing(path, workers, error):
    """On all workers except worker 0, raise an error that explains which worker saves files."""
    if workers.rank > 0:
        raise FileNotFoundError(
            error.errno,
            f"Worker {workers.rank} has no such file. On several workers, callbacks such as "
            "keras.callbacks.ModelCheckpoint save on worker 0 only. Use the same path on all "
            "workers, on a file system that they share (with KerasTuner: the same `directory` and "
            f"`project_name`) {see('TFA-607')}",
            path,
        ) from None
