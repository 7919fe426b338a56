"""Runs some callbacks on worker 0 only, and raises an error if they need all workers.

These callbacks are recognized by their class. A callback of another package is recognized by the
name of the package that defines its class or a base class. That package is not imported.
"""

import functools
import typing
import warnings

import keras

from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import one_worker
from tf_adasum.errors import see
from tf_adasum.workers.workers import Workers

# The attribute that makes a user's own callback run on worker 0 only.
ATTRIBUTE = "only_on_first_worker"

_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


def is_for_first_worker(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback runs on worker 0 only.

    Example:
        >>> class Notice(keras.callbacks.Callback):
        ...     only_on_first_worker = True
        >>> is_for_first_worker(Notice()), is_for_first_worker(keras.callbacks.CSVLogger("a.csv"))
        (True, True)
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(callback).__mro__}
    return (
        isinstance(callback, keras_compat.CALLBACKS_OF_WORKER_0)
        or getattr(callback, ATTRIBUTE, False) is True
        or not packages.isdisjoint(one_worker.TRACKERS)
    )


class FirstWorkerOnly(keras.callbacks.Callback):
    """A callback that calls another callback on worker 0 only.

    The other callback may save the model. If the other callback calls a method that needs all
    workers, an error names that method. If the other callback stops the training within an epoch,
    all workers stop at the end of that epoch.

    Args:
        callback: the other callback. This object also has the attributes of the other callback.
    """

    only_on_first_worker = True

    def __init__(self, callback: keras.callbacks.Callback):
        self.callback = callback
        super().__init__()
        self._workers: Workers | None = None
        self._stops = False
        # Set only the hooks that the other callback has, because Keras does not call a callback for
        # each batch if it has no hooks for batches.
        for name in _HOOKS:
            own = getattr(type(callback), name) is not getattr(keras.callbacks.Callback, name)
            if (own or name in vars(callback)) and name != "on_epoch_end":
                setattr(self, name, functools.partial(self._call, name))

    @classmethod
    def around(cls, callback: keras.callbacks.Callback) -> keras.callbacks.Callback:
        """Return the callback that worker 0 calls instead of `callback`."""
        is_one = isinstance(callback, FirstWorkerOnly)
        return cls(callback) if is_for_first_worker(callback) and not is_one else callback

    def __getattr__(self, name: str) -> typing.Any:
        """Return an attribute of the other callback."""
        if name == "callback":  # a copy of this object that has no attributes yet
            raise AttributeError(name)
        return getattr(self.callback, name)

    def set_params(self, params):
        """Set the parameters of both callbacks."""
        super().set_params(params)
        self._call("set_params", params)

    def set_model(self, model):
        """Set the model of both callbacks."""
        super().set_model(model)
        self._workers, self._stops = Workers.of_model(model), False
        self._call("set_model", model)

    def on_epoch_end(self, epoch, logs=None):
        """Call the other callback; stop the training if that callback stopped it in the epoch."""
        self._call("on_epoch_end", epoch, logs)
        if self._stops:
            self.model.stop_training = True

    def _call(self, method, *args, **kwargs):
        call = getattr(self.callback, method)
        if self._workers is None or self._workers.count == 1:
            call(*args, **kwargs)
        elif self._workers.rank == 0:
            was_stopped = getattr(self.model, "stop_training", False)
            name = type(self.callback).__name__
            with one_worker.alone(name, method):
                call(*args, **kwargs)
            is_stopped = getattr(self.model, "stop_training", False)
            if is_stopped and not was_stopped and method != "on_epoch_end":
                self._put_off_the_end(name)

    def _put_off_the_end(self, name):
        self.model.stop_training = False
        if not self._stops:
            self._stops = True
            warnings.warn(
                f"{name} set model.stop_training within an epoch, but this callback "
                "runs on worker 0 only. All workers stop at the end of the epoch. To stop within "
                f"an epoch, a callback has to run on all workers. {see('TFA-507')}",
                stacklevel=2,
            )
