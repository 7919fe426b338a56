"""After a signal to any worker, stops the training on all workers, with a backup.

A training can stop at these points. `health.graceful_stop` counts the points, and the workers agree
on one point.

* before the first batch of the training, without a new backup;
* before each later batch that is not the first batch of an epoch;
* before each batch of a validation, with the state after the last training batch of the epoch;
* after each epoch except the last;
* at the end of the training, before the backups are removed, so that the next start has nothing
  left to train.

If a callback has stopped the training, the training can stop on a signal only at its end.
"""

import os
import signal
import weakref

from tf_adasum.backup import safe_print, training_state
from tf_adasum.backup.signals import Signals
from tf_adasum.compat import keras as keras_compat


class StopOnSignal:
    """Stops the training of this worker after a signal to any worker.

    All workers call these methods.

    Args:
        backup: the `TrainingBackup`.
        workers: the `Workers`.
        callback_list: the `keras.callbacks.CallbackList` that calls the training's callbacks.
    """

    def __init__(self, backup, workers, callback_list):
        self._backup, self._workers, self._callback_list = backup, workers, callback_list
        self._stopping = workers.health.stopping
        asked_for = backup.on_signal
        self._code = asked_for.exit_code
        ask = _asking(weakref.ref(self))  # weak: a custom loop may stop without calling `end`
        self._signals = Signals(asked_for.numbers, ask, asked_for.leaves_handlers)
        self._is_over = False  # whether the training has ended without a stop
        self._is_first = True  # whether the next batch is the first of this training
        self._metrics = []

    def begin(self):
        """Handle the signals until `fit` ends, even if it ends with an error."""
        self._stopping.begin()
        self._signals.install_handlers()
        keras_compat.when_fit_ends(self.end)

    def end(self):
        """Install the previous handlers; send them a signal that came too late for `at_end`."""
        number = self._signals.received if self._is_over else 0
        self._is_over = False
        self._signals.restore_handlers()
        self._stopping.end()
        if number:
            os.kill(os.getpid(), number)

    def before_batch(self, model, batch):
        """Stop before this batch of the training if the workers have agreed to stop here."""
        is_first, self._is_first = self._is_first, False
        if (is_first or batch > 0) and self._stopping.stops_here():
            self._stop(model, None if is_first else (batch, {"has_begun": True}))

    def before_validation(self, model):
        """Keep the metrics of the training, because the validation uses the same variables."""
        self._metrics = training_state.local_values(model, training_state.METRICS)

    def before_batch_of_validation(self, model):
        """Stop before a batch of a validation."""
        if self._metrics and not model.stop_training and self._stopping.stops_here():
            for copy, value in self._metrics:
                copy.assign(value)
            self._stop(model, (None, {"is_validating": True}))

    def after_epoch(self, model):
        """Stop after an epoch, unless it was the last one."""
        self._metrics = []
        if not model.stop_training and self._stopping.stops_here():
            self._stop(model, (0, {}))

    def at_end(self, model, epochs):
        """Stop before the backups are removed, if a signal has requested a stop.

        Args:
            model: the model.
            epochs: int, the number of epochs of the whole training.
        """
        self._workers.any(False)  # waits for all workers; a signal may come in this time
        if self._workers.any(self._stopping.stop_requested):
            self._stop(model, (0, {"epoch": epochs}))
        self._is_over = True

    def _stop(self, model, progress):
        keras_compat.flush_async_callbacks(self._callback_list)
        if progress is not None:
            batch, options = progress
            self._backup.save_now(model, batch, **options)
        # This gather also lets all workers wait until worker 0 has saved.
        received = self._workers.gather([self._signals.received])[:, 0]
        text = ""
        if self._workers.rank == 0:
            names = [
                f"{signal.Signals(number).name} on worker {rank}"
                for rank, number in enumerate(received.tolist())
                if number
            ]
            by, folder = ", ".join(names) or "a signal", self._backup.folder
            where = (
                f"with a backup in {folder}" if self._backup.exists else "before the first batch"
            )
            text = (
                f"stopped by {by}, {where}: exit status {self._code}. The next start resumes from "
                "there."
            )
        safe_print.print_and_flush(text)
        self._stopping.end()
        self._signals.call_earlier()
        raise SystemExit(self._code)


def _asking(one):
    """Return a function that requests a stop; `one` is a weak reference to a `StopOnSignal`."""

    def ask():
        stop = one()
        if stop is None:
            return False
        stop._stopping.requested_here = True
        return True

    return ask
