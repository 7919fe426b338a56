"""Finds out whether a callback reads the logs of batches.

If no callback of any worker does, the steps of `fit` and `evaluate` do not exchange their logs,
which saves one of the two exchanges of a step.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import keras

Method = typing.TypeVar("Method", bound=Callable)


def leaves_logs_unread(method: Method) -> Method:
    """Mark a callback's method for the end of a batch that does not read the batch's logs."""
    method.leaves_logs_unread = True  # type: ignore[attr-defined]
    return method


def reads_batch_logs(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Return whether a callback may read the logs of a batch.

    A callback may read them if it has a method for the end of a batch. This is not true for a
    progress bar that shows only epochs, for a `ModelCheckpoint` that saves after epochs, and for
    methods marked with `leaves_logs_unread`.

    Args:
        callback: the callback, after Keras has set its parameters.
        kind: "train" for batches of `fit`, "test" for batches of `evaluate`.

    Example:
        >>> reads_batch_logs(keras.callbacks.TerminateOnNaN(), "train")
        True
        >>> reads_batch_logs(keras.callbacks.EarlyStopping(), "train")
        False
    """
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return callback.verbose == 1
    return any(_reads(callback, name) for name in ("on_batch_end", f"on_{kind}_batch_end"))


def _reads(callback, name):
    function = getattr(getattr(callback, name), "__func__", None)
    if function is getattr(keras.callbacks.Callback, name):
        return False
    if function is getattr(keras.callbacks.ModelCheckpoint, name):
        return callback.save_freq != "epoch"
    return not getattr(function, "leaves_logs_unread", False)
