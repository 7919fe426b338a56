"""Finds out whether a callback reads the logs of batches.

If no callback of any worker does, the steps of `fit` and `evaluate` do not exchange their logs,
which saves one of the two exchanges of a step.
"""

import typing
from collections.abc import Callable, Iterable

import keras

from tf_adasum.compat.keras.generation import IS_KERAS_2, private_names
from tf_adasum.compat.keras.progress_bar import ProgressBar

# With Keras's own methods of these names, an epoch's logs are the results of the metrics.
_METHODS = ("compute_metrics", "get_metrics_result", "_get_metrics_result_or_logs")

_KINDS = {"fit": "train", "evaluate": "test", "train_on_batch": "train", "test_on_batch": "test"}

Method = typing.TypeVar("Method", bound=Callable)


def ignores_batch_logs(method: Method) -> Method:
    """Mark a callback's method for the end of a batch that does not read the batch's logs."""
    method.ignores_batch_logs = True  # type: ignore[attr-defined]
    return method


def reads_logs_of(
    model: keras.Model, callbacks: Iterable[keras.callbacks.Callback], call: str
) -> bool:
    """Return whether the logs of the steps of a call are read.

    Callbacks may read them. Keras reads the logs of the last step, unless they have the names of
    the model's metrics, as those of Keras's own steps have.

    Args:
        model: the model.
        callbacks: the callbacks of this worker.
        call: "fit" or "evaluate".
    """
    kind = _KINDS[call]
    return (
        IS_KERAS_2
        or any(reads_batch_logs(callback, kind) for callback in callbacks)
        or not has_keras_steps(model, call)
    )


def has_keras_steps(model: keras.Model, call: str) -> bool:
    """Return whether the logs of the steps of a call are the results of the model's metrics.

    Args:
        model: the model.
        call: a method of a model that trains or evaluates, such as "fit".
    """
    kind = _KINDS[call]
    methods = (f"{kind}_step", f"make_{kind}_function", *_METHODS)
    return all(_is_own_method(model, name) for name in methods)


def reads_batch_logs(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Return whether a callback may read the logs of a batch.

    A callback may read them if it has a method for the end of a batch. This is not true for a
    progress bar that shows only epochs, for a `ModelCheckpoint` that saves after epochs, and for
    methods marked with `ignores_batch_logs`.

    Args:
        callback: the callback, after Keras has set its parameters.
        kind: "train" for batches of `fit`, "test" for batches of `evaluate`.

    Example:
        >>> reads_batch_logs(keras.callbacks.TerminateOnNaN(), "train")
        True
        >>> reads_batch_logs(keras.callbacks.EarlyStopping(), "train")
        False
    """
    if type(callback) in (keras.callbacks.ProgbarLogger, ProgressBar):
        return callback.verbose == 1
    return any(_reads(callback, name) for name in ("on_batch_end", f"on_{kind}_batch_end"))


def _is_own_method(model, name):
    """Return whether a method is Keras's own; False if a newer Keras lacks the method."""
    own = getattr(private_names.Trainer, name, None)
    return own is not None and getattr(getattr(model, name), "__func__", None) is own


def _reads(callback, name):
    method = getattr(callback, name)
    if getattr(method, "__self__", None) is not callback:  # it was set, and may be anything
        return True
    function = method.__func__
    if function is getattr(keras.callbacks.Callback, name):
        return False
    if function is getattr(keras.callbacks.ModelCheckpoint, name):
        return callback.save_freq != "epoch"
    return not getattr(function, "ignores_batch_logs", False)
