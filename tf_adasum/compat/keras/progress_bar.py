"""Sets the length and the logs that Keras's progress bar shows, for Keras 2 and 3."""

import weakref

import keras

from tf_adasum.compat.keras.generation import hooks

# ---- how long the training is ------------------------------------------------------------------

# For each model: the numbers of "epochs", and of "steps" per epoch, that its progress bar shows.
_expected = weakref.WeakKeyDictionary()


def set_progress_bar_length(model, **numbers):
    """Set the length that a model's progress bar shows from the next epoch on.

    Args:
        model: the model.
        numbers: `epochs`, the number of epochs, and `steps`, the number of steps per epoch.
    """
    _expected.setdefault(model, {}).update(numbers)


def reset_progress_bar_length(model):
    """Let a model's progress bar show the length that is passed to `fit`."""
    _expected.pop(model, None)


@hooks.replaces(keras.callbacks.ProgbarLogger, "on_train_begin")
def on_train_begin(original, self, logs=None):
    """Discard the length and the logs of an earlier `fit` that failed."""
    reset_progress_bar_length(self.model)
    _logged.pop(self.model, None)
    return original(self, logs)


@hooks.replaces(keras.callbacks.ProgbarLogger, "on_epoch_begin", "on_epoch_end")
def on_epoch_begin_or_end(original, self, epoch, logs=None):
    """Show the numbers of epochs and steps that callbacks have set, not the arguments of `fit`."""
    if self.model in _expected:
        self.epochs = _expected[self.model].get("epochs", self.epochs)
        self.target = _expected[self.model].get("steps", self.target)
        if original.__name__ == "on_epoch_end" and self.progbar is not None:
            self.target = self.progbar.target = self.seen  # the number of steps taken
    return original(self, epoch, _to_show(self.model, logs))


# ---- which logs it shows -----------------------------------------------------------------------

# The progress bar shows at most this many values of this package's callbacks.
MOST_SHOWN = 2

# For each model: the names that callbacks of this package have logged, and whether to show each.
_logged = weakref.WeakKeyDictionary()


def log(model, logs, shown, hidden):
    """Add the values of a callback to `logs`, so that other callbacks receive them.

    Args:
        model: the model that is trained.
        logs: the dict that Keras passes to callbacks. If it is None, nothing is done.
        shown: dict of the values that the progress bar may show. It shows the first two values of
            all callbacks together.
        hidden: dict of the values that the progress bar does not show.
    """
    if logs is not None:
        logs.update({**hidden, **shown})
        names = {**dict.fromkeys(hidden, False), **dict.fromkeys(shown, True)}
        _logged.setdefault(model, {}).update(names)


@hooks.replaces(keras.callbacks.ProgbarLogger, "on_train_batch_end")
def on_train_batch_end(original, self, batch, logs=None):
    """Show at most two values of this package's callbacks, which log a dozen values or more."""
    return original(self, batch, _to_show(self.model, logs))


def _to_show(model, logs):
    names = _logged[model] if model in _logged else {}
    if not logs or not names:
        return logs
    ours = [name for name, is_shown in names.items() if is_shown and name in logs][:MOST_SHOWN]
    return {
        name: _Rank(value) if name in ours and isinstance(value, int) else value
        for name, value in logs.items()
        if name not in names or name in ours
    }


class _Rank(float):
    """A whole number, which Keras 3 would otherwise show as 0.0000e+00."""

    def __truediv__(self, other):
        return self  # Keras divides by the number of values, which is 1

    def __format__(self, specification):
        return str(int(self))
