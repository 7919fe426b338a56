"""Limits what Keras's progress bar shows of the logs, for Keras 2 and 3."""

import keras


class Hidden(float):
    """A value that a callback adds to the logs, and that the progress bar does not show."""


class ProgressBar(keras.callbacks.ProgbarLogger):
    """A progress bar without `Hidden` values, of which a callback may log dozens."""

    def on_train_batch_end(self, batch, logs=None):
        """Show the values of a step."""
        super().on_train_batch_end(batch, _shown(logs))

    def on_epoch_end(self, epoch, logs=None):
        """Show the values of an epoch."""
        super().on_epoch_end(epoch, _shown(logs))


def without_hidden_values(callback):
    """Return a callback, or if it is Keras's progress bar, one that shows no `Hidden` values."""
    if type(callback) is not keras.callbacks.ProgbarLogger:
        return callback
    bar = ProgressBar()
    vars(bar).update(vars(callback))
    return bar


def _shown(logs):
    return {name: value for name, value in (logs or {}).items() if not isinstance(value, Hidden)}
