"""Lets all workers save the same `tf.train.Checkpoint`, as scripts for one process do.

TensorFlow's workers would write to the same files at the same time. Here each worker writes files
of its own, and then gives them their final names, one worker after the other. The workers have the
same values, so it does not matter whose files stay. If workers have disks of their own, each disk
has the checkpoint. Worker 0 may also save alone.
"""

import contextlib
import copy
import fcntl
import inspect
import os
from collections.abc import Iterator

import tensorflow as tf

from tf_adasum import atomic_files
from tf_adasum.compat.base_strategy import live_strategies
from tf_adasum.compat.tensorflow.private_names import CHECKPOINTS, hooks


@hooks.replaces(tf.train.Checkpoint, "_write", feature=CHECKPOINTS)
def write_checkpoint(original, self, file_prefix, options=None):
    """Write the files of a checkpoint under names of this worker, and rename them at the end.

    Only one worker at a time renames its files and runs the callbacks of the options. In these
    callbacks, `tf.train.CheckpointManager` deletes old checkpoints, and all workers delete the
    same. An asynchronous checkpoint calls this method again from its thread.
    """
    ranks = [each._workers.rank for each in live_strategies if each._workers.count > 1]
    is_path = isinstance(file_prefix, str | os.PathLike) and atomic_files.is_local(file_prefix)
    is_later = options and options.experimental_enable_async_checkpoint
    if not ranks or not is_path or is_later or not tf.executing_eagerly():
        return original(self, file_prefix, options)
    path, options = os.fspath(file_prefix), copy.copy(options or tf.train.CheckpointOptions())
    callbacks, options.experimental_write_callbacks = options.experimental_write_callbacks, None
    folder, name = os.path.split(os.path.abspath(path))
    own = f".worker-{ranks[0]}-{name}."
    original(self, os.path.join(folder, own[:-1]), options)
    with _alone_in(folder):
        # Readers look for the file ".index", which comes after ".data".
        for each in sorted(each for each in os.listdir(folder) if each.startswith(own)):
            os.replace(
                os.path.join(folder, each), os.path.join(folder, f"{name}.{each[len(own) :]}")
            )
        for callback in callbacks or ():  # some take the path
            callback(*[path][: len(inspect.signature(callback).parameters)])
    return path


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Return a context manager that only one process of this machine runs for a directory."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
