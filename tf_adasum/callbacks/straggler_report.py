"""StragglerReport: how long each worker waits for the others, and which one they wait for."""

from __future__ import annotations

import threading
import time
import typing
from collections.abc import Callable

import keras
import numpy as np

from tf_adasum.callbacks.plotting import Plotting
from tf_adasum.seams import keras as keras_seam
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.base_strategy import GradientAggregatingStrategy

if typing.TYPE_CHECKING:
    from matplotlib.axes import Axes

# Looks at the counters of collectives: each takes some 30 µs.
SECONDS_BETWEEN_LOOKS = 0.02

# A worker is named if it waits for so much less than the median of the others, as a part of a step.
STANDS_OUT = 0.1


@keras.saving.register_keras_serializable("tf_adasum")
class StragglerReport(Plotting, keras.callbacks.Callback):
    """Callback that says how long each worker waits for others in a step, and who is slow.

    In synchronous training all workers take the same time for a step: that of the slowest. What
    tells them apart is how much of it each one waits. The slow one waits least: whoever is there
    last finds all others waiting. At the end of each epoch `logs` have, hence History, CSVLogger
    and TensorBoard (put loggers after this callback in the list; the progress bar shows only the
    slowest worker, if there is one):

    * ``step_ms/worker_0``, …: milliseconds from the beginning of a step to that of the next one,
      the median over the epoch, callbacks between them included;
    * ``waiting_ms/worker_0``, …: of these, how long the worker was in a collective: it waited for
      others, or sent. That is the part of the epoch's steps (of 50 looks a second) in which it was
      in one, times the median step. Where communication overlaps with the backward pass, that
      part counts as waiting, too.
    * ``slowest_worker``: the rank of the worker that waits least, if that is less than what the
      others wait (their median) by a tenth of a step or more, and by more than looks differ by
      chance, which matters in epochs of less than ten seconds; else -1: none stands out.

    It does not know why a worker is slow: its data, its processor, its callbacks. The difference
    between the waiting times of the slowest worker and of the others is about what a step would
    save if it was as fast as they are. The first step of a training does not count, because
    TensorFlow traces it. At the end of training worker 0 prints who was slow in more than half of
    the epochs. On GPUs the times are those at which the host has been told, and nothing of it was
    measured on one.

    A thread looks at counters that are there anyway, so a step costs nothing more; the workers
    exchange three numbers after each epoch. Pass it on all workers. With one worker nothing waits.

    Attributes:
        epochs: list of the epochs measured.
        values: list of dicts, one for each epoch: ``"step_ms"`` and ``"waiting_ms"``, arrays
            ``[W]`` of all workers, and ``"slowest"``, a rank or -1.

    Raises:
        ValueError: when training starts, if the model is trained by another strategy than an
            `AdasumMirroredStrategy`; on all workers, if not all have the callback.

    Example:
        >>> report = tf_adasum.callbacks.StragglerReport()
        >>> history = model.fit(x, y, batch_size=4, epochs=2, callbacks=[report], verbose=0)
        >>> history.history["slowest_worker"]
        [-1, -1]
        >>> axes = report.plot().axes  # and .savefig("stragglers.png")
    """

    def __init__(self):
        super().__init__()
        self.epochs: list[int] = []
        self.values: list[dict[str, typing.Any]] = []
        self._looks: _Looks | None = None

    @property
    def same_on_all_workers(self) -> str:
        """What all workers compare when training starts: this callback waits for the others."""
        return "StragglerReport()"

    def get_config(self) -> dict[str, typing.Any]:
        """Return the constructor's arguments: none."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> StragglerReport:
        """Return a callback made from what `get_config` returned."""
        return cls(**config)

    def on_train_begin(self, logs=None):
        """Find the counters; start to look at them."""
        strategy: typing.Any = self.model.distribute_strategy
        is_ours = isinstance(strategy, GradientAggregatingStrategy)
        if not is_ours:
            raise ValueError(
                "StragglerReport needs a model that was made under an AdasumMirroredStrategy. "
                f"Received: one of {type(strategy).__name__}"
            )
        self._workers = strategy.workers
        counters = tensorflow_seam.cross_device_ops(
            self.model.distribute_strategy.extended
        ).counters
        self._looks, self._is_first = None, True
        if counters is not None:
            self._looks = _Looks(counters.read)
            keras_seam.when_fit_ends(self._looks.end)

    def on_epoch_begin(self, epoch, logs=None):
        """Start an epoch."""
        self._steps: list[float] = []
        self._last: tuple[int, float] | None = None
        if self._looks:
            self._looks.begin_epoch()

    def on_train_batch_begin(self, batch, logs=None):
        """Note when a step begins; after the first one of all, begin to look."""
        now = time.perf_counter()
        if self._is_first:
            self._is_first = False
            return
        if self._last is not None:
            self._steps.append((now - self._last[1]) / max(1, batch - self._last[0]))
        elif self._looks:
            self._looks.is_on = True
        self._last = batch, now

    def on_test_begin(self, logs=None):
        """Leave the validation out."""
        self._pause()

    def on_epoch_end(self, epoch, logs=None):
        """Exchange what was measured, and put it into the logs."""
        self._pause()
        step = float(np.median(self._steps)) if self._steps else 0.0
        waiting = step * self._looks.part() if self._looks else 0.0
        looks = self._looks.count if self._looks else 0
        table = self._workers.gather([round(step * 1e6), round(waiting * 1e6), looks])
        step_ms, waiting_ms = table.T[:2] / 1e3
        slowest = _slowest(step_ms, waiting_ms, table[:, 2].min())
        self.epochs.append(epoch)
        self.values.append({"step_ms": step_ms, "waiting_ms": waiting_ms, "slowest": slowest})
        hidden = {
            f"{name}/worker_{rank}": float(value)
            for name, of_workers in (("step_ms", step_ms), ("waiting_ms", waiting_ms))
            for rank, value in enumerate(of_workers)
        }
        named = {"slowest_worker": slowest}
        shown = named if slowest >= 0 else {}
        keras_seam.log(self.model, logs, shown, {**hidden, **named})

    def on_train_end(self, logs=None):
        """Stop looking; worker 0 says who was slow."""
        self._pause()
        if self._looks:
            self._looks.end()
        if self.values and self._workers.rank == 0:
            named = [value["slowest"] for value in self.values]
            slowest = max(set(named), key=named.count)
            if slowest >= 0 and 2 * named.count(slowest) > len(named):
                last = [value for value in self.values if value["slowest"] == slowest][-1]
                step, waits = np.median(last["step_ms"]), last["waiting_ms"]
                print(
                    f"tf_adasum: worker {slowest} is slow: of a step of {step:.0f} ms it waits "
                    f"{waits[slowest]:.0f} ms for others, and they wait "
                    f"{np.median(np.delete(waits, slowest)):.0f} ms.",
                    flush=True,
                )

    def _pause(self):
        if self._looks:
            self._looks.is_on = False

    def draw(self, axes: Axes) -> None:
        """Draw a bar for each worker: medians over the epochs of its own time, and of waiting."""
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


def _slowest(step_ms, waiting_ms, looks):
    """Return the rank of the worker that waits least, or -1 if it does not stand out."""
    rank = int(np.argmin(waiting_ms))
    others = np.delete(waiting_ms, rank)
    # The part of n looks is that of the time but for sqrt(p (1 - p) / n), and two are compared.
    chance = 3 * np.sqrt(0.5 / max(1, looks))
    least = max(STANDS_OUT, chance) * np.median(step_ms)
    return rank if len(others) and np.median(others) - waiting_ms[rank] > least else -1


class _Looks:
    """A thread that looks now and then whether this worker is in a collective.

    Args:
        read: function that returns how many collectives were entered, and how many were left.

    Attributes:
        is_on: whether it looks.
        count: how often it has looked in this epoch.
    """

    def __init__(self, read: Callable[[], tuple[int, int, int]]):
        self._read = read
        self.is_on, self.count = False, 0
        self._has_ended = threading.Event()
        self.begin_epoch()
        threading.Thread(target=self._run, daemon=True, name="tf_adasum looks").start()

    def begin_epoch(self) -> None:
        """Begin anew, where no collective is under way."""
        entered, left, _ = self._read()
        self._left_before, self.count, self._inside = entered - left, 0, 0

    def part(self) -> float:
        """Return in which part of the looks this worker was in a collective."""
        return self._inside / self.count if self.count else 0.0

    def end(self) -> None:
        """End the thread."""
        self._has_ended.set()

    def _run(self):
        while not self._has_ended.wait(SECONDS_BETWEEN_LOOKS):
            if self.is_on:
                entered, left, _ = self._read()
                self.count += 1
                self._inside += entered - left > self._left_before
