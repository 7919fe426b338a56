"""Lets all workers save the same `tf.train.Checkpoint`, as scripts for one process do.

TensorFlow's workers would write to the same files at the same time. Here each worker writes files
of its own, and then gives them their final names, one worker after the other. The workers have the
same values, so it does not matter whose files stay. If workers have disks of their own, each disk
has the checkpoint. Worker 0 may also save alone.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator

import tensorflow as tf

from tf_adasum import atomic_files
from tf_adasum.compat.base_strategy import live_strategies
from tf_adasum.compat.tensorflow.private_names import CHECKPOINTS, TrackableSaver
from tf_adasum.compat.tensorflow.registry import hooks


@hooks.replaces(TrackableSaver, "save", feature=CHECKPOINTS)
def save_checkpoint(original, self, file_prefix, *args, **kwargs):
    """Write the files of a checkpoint under names of this worker, and rename them at the end."""
    ranks = [each._workers.rank for each in live_strategies if each._workers.count > 1]
    is_path = isinstance(file_prefix, str | os.PathLike) and atomic_files.is_local(file_prefix)
    if not ranks or not is_path or not tf.executing_eagerly():
        return original(self, file_prefix, *args, **kwargs)
    folder, name = os.path.split(os.path.abspath(file_prefix))
    own = f".worker-{ranks[0]}-{name}."
    original(self, os.path.join(folder, own[:-1]), *args, **kwargs)
    with _alone_in(folder):
        # Readers look for the file ".index", which comes after ".data".
        for each in sorted(each for each in os.listdir(folder) if each.startswith(own)):
            os.replace(
                os.path.join(folder, each), os.path.join(folder, f"{name}.{each[len(own) :]}")
            )
    return tf.constant(os.fspath(file_prefix))


@hooks.replaces(tf.train.CheckpointManager, "_sweep", feature=CHECKPOINTS)
def sweep(original, self):
    """Let only one worker at a time delete old checkpoints, because the workers delete the same."""
    with _alone_in(self.directory):
        return original(self)


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Return a context manager that only one process of this machine runs for a directory."""
    if not os.path.isdir(folder):  # a URL
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
