"""OnFirstWorker: run a callback on one worker only, for example if it reports to a server."""

import keras

from tf_adasum.arguments import check
from tf_adasum.workers import callbacks as worker_callbacks
from tf_adasum.workers.first_worker import FirstWorkerOnly

# These callbacks change weights, the learning rate or the end of training. They use only `logs`,
# which are the same on all workers.
_STEERING = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TerminateOnNaN,
    *([keras.callbacks.SwapEMAWeights] if hasattr(keras.callbacks, "SwapEMAWeights") else []),
)


class OnFirstWorker(FirstWorkerOnly):
    """Callback that runs another callback on worker 0 only.

    The `logs` of worker 0 cover all workers. Pass `OnFirstWorker` on all workers, or on worker 0
    only. You do not need it for Keras's `ModelCheckpoint`, `CSVLogger` and `TensorBoard`, nor for
    the callbacks of Aim, ClearML, Comet, DVCLive, MLflow, Neptune and Weights & Biases: these
    already run on worker 0 only. In a class of your own, you can set the attribute
    ``only_on_first_worker = True`` instead.

    `callback` may save the model and call `predict`, which then runs on worker 0 alone. If it calls
    `fit` or `evaluate`, an error names that method. If `callback` sets `model.stop_training` within
    an epoch, all workers stop at the end of that epoch.

    Args:
        callback: the `keras.callbacks.Callback`. You can read its attributes from `OnFirstWorker`.

    Raises:
        ValueError: if `callback` is not a callback, or if it has to run on all workers, such as
            `EarlyStopping`, `LearningRateScheduler` or `ReplicaCheck`.
        RuntimeError: in training, if `callback` calls a method that needs all workers.

    Example:
        >>> epochs = []
        >>> notify = keras.callbacks.LambdaCallback(
        ...     on_epoch_end=lambda epoch, logs: epochs.append(epoch))
        >>> history = model.fit(
        ...     x, y, epochs=2, callbacks=[tf_adasum.callbacks.OnFirstWorker(notify)], verbose=0)
        >>> epochs
        [0, 1]
    """

    def __init__(self, callback: keras.callbacks.Callback):
        is_callback = isinstance(callback, keras.callbacks.Callback)
        check("callback", callback, is_callback, "must be a keras.callbacks.Callback")
        # So far all callbacks of this package run on all workers: they measure all workers.
        is_own = type(callback).__module__.startswith("tf_adasum.callbacks.")
        waits = getattr(callback, "settings_to_compare", None) is not None
        is_nested = isinstance(callback, FirstWorkerOnly)
        if (is_own and not is_nested) or waits or isinstance(callback, _STEERING):
            raise ValueError(
                f"{type(callback).__name__} has to run on all workers, so pass it to `fit` without "
                f"OnFirstWorker. Received: callback={callback!r}"
            )
        worker_callbacks.install()
        super().__init__(callback)
