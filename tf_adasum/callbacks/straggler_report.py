"""StragglerReport: measure how long each worker waits for the others, and find a slow worker."""

import threading
import time
import typing
from collections.abc import Callable

import keras
import numpy as np

from tf_adasum.callbacks.configured import Configured
from tf_adasum.callbacks.plotting import Plotting
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat

if typing.TYPE_CHECKING:
    from matplotlib.axes import Axes

# The time between samples of the counters of collectives; a sample takes about 30 µs.
POLL_SECONDS = 0.02

# A worker counts as slow if its waiting time is shorter than the median of the other workers, by
# more than this fraction of a step.
STANDS_OUT = 0.1

# If no worker is slow, but all spend more than this fraction of a step in collectives, the callback
# prints how to find a slow link.
LONG_COLLECTIVES = 0.5


@keras.saving.register_keras_serializable("tf_adasum")
class StragglerReport(Configured, Plotting, keras.callbacks.Callback):
    """Callback that measures how long each worker waits for the others, and names a slow worker.

    All workers take the same time for a step; they differ in how long they wait within it. The slow
    worker waits least. At the end of each epoch, the callback adds values to `logs`: put loggers
    after it in the list, and pass it on all workers.

    * ``step_ms/worker_0``, …: median milliseconds from the beginning of a step to the next one,
      including callbacks.
    * ``waiting_ms/worker_0``, …: how many of these milliseconds the worker spent in a collective,
      sampled 50 times a second. Communication that overlaps with the backward pass counts as
      waiting.
    * ``slowest_worker``: the rank of the slow worker, or -1. A worker is slow if it waits less than
      the median of the others, by more than a tenth of a step and more than the sampling error.

    If the slow worker were as fast as the others, a step would be shorter by about the difference
    of their waiting times. The first step is left out. At the end of training, worker 0 prints
    which worker was slow in more than half of the epochs, or that all workers spent more than half
    of a step in collectives, as a slow link makes them do. It was not tested on a GPU.

    Attributes:
        epochs: list of the measured epochs.
        values: list of dicts, one for each epoch: ``"step_ms"`` and ``"waiting_ms"``, arrays
            ``[workers]`` with one value per worker, and ``"slowest"``, a rank or -1.

    Raises:
        ValueError: when training starts, if the model uses another strategy than an
            `AdasumMirroredStrategy`; on all workers, if a worker does not have the callback.

    Example:
        >>> report = tf_adasum.callbacks.StragglerReport()
        >>> history = model.fit(x, y, batch_size=4, epochs=2, callbacks=[report], verbose=0)
        >>> history.history["slowest_worker"]
        [-1.0, -1.0]
        >>> axes = report.plot().axes  # and .savefig("stragglers.png")
    """

    def __init__(self):
        super().__init__()
        self.epochs: list[int] = []
        self.values: list[dict[str, typing.Any]] = []
        self._sampler: typing.Any = None  # the `_Sampler` of a training

    @property
    def settings_to_compare(self) -> str:
        """The setting that must match on all workers, because this callback waits for them."""
        return "StragglerReport()"

    def on_train_begin(self, logs=None):
        """Get the counters of collectives."""
        strategy: typing.Any = self.model.distribute_strategy
        if not keras_compat.is_ours(strategy):
            raise ValueError(
                "StragglerReport needs a model that was created under an AdasumMirroredStrategy. "
                f"Received: a model of {type(strategy).__name__}"
            )
        self._workers = strategy._workers
        counters = tensorflow_compat.cross_device_ops(strategy.extended).counters
        read = counters.read if counters else None
        self._sampler, self._is_first = _Sampler(read), True
        keras_compat.when_fit_ends(self._sampler.end)

    def on_epoch_begin(self, epoch, logs=None):
        """Start an epoch."""
        self._steps: list[float] = []
        self._last: tuple[int, float] | None = None
        self._sampler.begin_epoch()

    def on_train_batch_begin(self, batch, logs=None):
        """Note when a step begins; start sampling after the first step of the training."""
        now = time.perf_counter()
        if self._is_first:
            self._is_first = False
            return
        if self._last is not None:
            self._steps.append((now - self._last[1]) / max(1, batch - self._last[0]))
        else:
            self._sampler.is_on = True
        self._last = batch, now

    def on_test_begin(self, logs=None):
        """Stop sampling during validation."""
        if self._sampler:
            self._sampler.is_on = False

    def on_epoch_end(self, epoch, logs=None):
        """Exchange the measurements, and add them to the logs."""
        self._sampler.is_on = False
        step = float(np.median(self._steps)) if self._steps else 0.0
        own = round(step * 1e6), round(step * self._sampler.fraction() * 1e6), self._sampler.count
        table = self._workers.gather(own)
        step_ms, waiting_ms = table.T[:2] / 1e3
        slowest = _slowest(step_ms, waiting_ms, table[:, 2].min())
        self.epochs.append(epoch)
        self.values.append({"step_ms": step_ms, "waiting_ms": waiting_ms, "slowest": slowest})
        hidden = {
            f"{name}/worker_{rank}": keras_compat.Hidden(value)
            for name, of_workers in (("step_ms", step_ms), ("waiting_ms", waiting_ms))
            for rank, value in enumerate(of_workers)
        }
        if logs is not None:
            shown = slowest if slowest >= 0 else keras_compat.Hidden(slowest)
            logs.update({**hidden, "slowest_worker": shown})

    def on_train_end(self, logs=None):
        """Stop sampling; worker 0 prints which worker was slow, or how to measure the links."""
        self._sampler.end()
        if self.values and self._workers.rank == 0 and (line := _conclusion(self.values)):
            print(f"tf_adasum: {line}", flush=True)

    def draw(self, axes: "Axes") -> None:
        """Draw a bar for each worker: its own time and its waiting time, medians over epochs."""
        step, waiting = (
            np.median([value[name] for value in self.values], axis=0)
            for name in ("step_ms", "waiting_ms")
        )
        workers = np.arange(len(step))
        axes.barh(workers, step - waiting, label="its own work")
        axes.barh(workers, waiting, left=step - waiting, label="in collectives: waiting, sending")
        axes.set_yticks(workers, [f"worker {rank}" for rank in workers])
        axes.invert_yaxis()
        axes.set_xlabel("ms of a step")
        axes.legend()

    @property
    def figure_inches(self) -> tuple[float, float]:
        """The size of a figure with a bar for each worker."""
        return 8, 1.5 + 0.3 * len(self.values[0]["step_ms"])


def _slowest(step_ms, waiting_ms, samples):
    """Return the rank of the worker that waits least, or -1 if no worker is slow."""
    rank = int(np.argmin(waiting_ms))
    others = np.delete(waiting_ms, rank)
    # A fraction p of n samples has the standard error sqrt(p (1 - p) / n). So the difference of two
    # fractions has a standard error of at most sqrt(0.5 / n). Three standard errors are required.
    noise = 3 * np.sqrt(0.5 / max(1, samples))
    least = max(STANDS_OUT, noise) * np.median(step_ms)
    return rank if len(others) and np.median(others) - waiting_ms[rank] > least else -1


def _conclusion(values):
    """Return the line to print at the end of training, or None; values: as in StragglerReport."""
    named = [value["slowest"] for value in values]
    slowest = max(set(named), key=named.count)
    if 2 * named.count(slowest) <= len(named):
        return None
    last = [value for value in values if value["slowest"] == slowest][-1]
    step, waits = np.median(last["step_ms"]), last["waiting_ms"]
    if slowest >= 0:
        return (
            f"worker {slowest} is slow: in a step of {step:.0f} ms, it waits "
            f"{waits[slowest]:.0f} ms, and the other workers wait "
            f"{np.median(np.delete(waits, slowest)):.0f} ms."
        )
    if min(waits) > LONG_COLLECTIVES * step:
        return (
            f"no worker is slow, but in a step of {step:.0f} ms, every worker spends at least "
            f"{min(waits):.0f} ms in collectives. If a link between workers may be slow, measure "
            "the links with iperf3."
        )
    return None


class _Sampler:
    """A thread that samples whether this worker is in a collective.

    Args:
        read: function that returns how many collectives this worker has entered and left. None, if
            there is no other worker: nothing is sampled.

    Attributes:
        is_on: whether the thread samples.
        count: the number of samples in this epoch.
    """

    def __init__(self, read: Callable[[], tuple[int, int, int]] | None):
        self._read = read or (lambda: (0, 0, 0))
        self.is_on, self.count = False, 0
        self._has_ended = threading.Event()
        self.begin_epoch()
        if read is not None:
            threading.Thread(target=self._run, daemon=True, name="tf_adasum sampler").start()

    def begin_epoch(self) -> None:
        """Reset the counts; must not be called while a collective is running."""
        entered, left, _ = self._read()
        self._left_before, self.count, self._inside = entered - left, 0, 0

    def fraction(self) -> float:
        """Return the fraction of samples in which this worker was in a collective."""
        return self._inside / self.count if self.count else 0.0

    def end(self) -> None:
        """End the thread."""
        self._has_ended.set()

    def _run(self):
        while not self._has_ended.wait(POLL_SECONDS):
            if self.is_on:
                entered, left, _ = self._read()
                self.count += 1
                self._inside += entered - left > self._left_before
