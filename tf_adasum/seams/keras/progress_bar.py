"""Keras's progress bar, for both generations: how long the training is, and which logs it shows."""

import weakref

import keras

from tf_adasum.seams.keras.generation import hooks

# ---- how long the training is ------------------------------------------------------------------

# For each model what its progress bar shows: "epochs", and "steps" per epoch.
_expected = weakref.WeakKeyDictionary()


def expect(model, **numbers):
    """Set what a model's progress bar shows from the next epoch on.

    Args:
        model: the model.
        numbers: `epochs` and `steps` (per epoch).
    """
    _expected.setdefault(model, {}).update(numbers)


def expect_as_asked(model):
    """Let a model's progress bar expect what `fit` is asked for."""
    _expected.pop(model, None)


@hooks.replaces(keras.callbacks.ProgbarLogger, "on_train_begin")
def on_train_begin(original, self, logs=None):
    """Forget what an earlier training that failed has set: its length, and its logs."""
    expect_as_asked(self.model)
    _logged.pop(self.model, None)
    return original(self, logs)


@hooks.replaces(keras.callbacks.ProgbarLogger, "on_epoch_begin", "on_epoch_end")
def on_epoch_begin_or_end(original, self, epoch, logs=None):
    """Let callbacks say how long the training is: Keras shows what `fit` was asked for."""
    if self.model in _expected:
        self.epochs = _expected[self.model].get("epochs", self.epochs)
        self.target = _expected[self.model].get("steps", self.target)
        if original.__name__ == "on_epoch_end" and self.progbar is not None:
            self.target = self.progbar.target = self.seen  # as many as there were
    return original(self, epoch, _to_show(self.model, logs))


# ---- which logs it shows -----------------------------------------------------------------------

# How many values of this package's callbacks the progress bar shows.
MOST_SHOWN = 2

# For each model the names that callbacks of this package have logged: whether each is shown.
_logged = weakref.WeakKeyDictionary()


def log(model, logs, shown, hidden):
    """Put the values of a callback into `logs`, which other callbacks receive as a whole.

    Args:
        model: the model that is trained.
        logs: the dict that Keras hands to callbacks; nothing happens if it is None.
        shown: dict of the values that the progress bar shows as well, `MOST_SHOWN` in all.
        hidden: dict of the values that it does not show.
    """
    if logs is not None:
        logs.update({**hidden, **shown})
        names = {**dict.fromkeys(hidden, False), **dict.fromkeys(shown, True)}
        _logged.setdefault(model, {}).update(names)


@hooks.replaces(keras.callbacks.ProgbarLogger, "on_train_batch_end")
def on_train_batch_end(original, self, batch, logs=None):
    """Show at most two values of this package's callbacks, which log a dozen and more."""
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
    """A whole number, which Keras 3 would show with four decimal places: as 0.0000e+00."""

    def __truediv__(self, other):
        return self  # Keras divides by the number of values, which is 1

    def __format__(self, specification):
        return str(int(self))
