"""OrthogonalityTracker: measure how similar the replicas' gradients are during training."""

import typing
from collections.abc import Iterable, Mapping

import keras
import numpy as np

from tf_adasum.callbacks import progress
from tf_adasum.callbacks.step_counter import frequency
from tf_adasum.callbacks.step_tracker import StepTracker
from tf_adasum.compat import keras as keras_compat

if typing.TYPE_CHECKING:
    from matplotlib.axes import Axes


@keras.saving.register_keras_serializable("tf_adasum")
class OrthogonalityTracker(StepTracker):
    """Callback that measures how orthogonal the replicas' gradients are, per variable and overall.

    If g_1 … g_N are the gradients of N replicas, the orthogonality is
    ``‖adasum(g_1 … g_N)‖² / Σ_i ‖g_i‖²``. It is 1 if the gradients of all replicas are orthogonal
    (Adasum adds them), 1/N if they are equal (Adasum averages them), and less than 1/N if they
    point in opposite directions. With `local_reduction`, g_i is the mean gradient of host i, and N
    is the number of hosts.

    In every `log_freq`-th step, ``logs["orthogonality"]`` is the value for all variables together.
    At the end of an epoch, it is the mean of these values over the epoch, and
    ``logs["orthogonality/PATH"]`` is the mean for one variable. History, CSVLogger and TensorBoard
    read the values from `logs`, so put loggers after this callback in the list. The progress bar
    shows only the value for all variables. ``logs["progress"]`` of an epoch is the number of steps
    of one replica that a step is worth, to first order (see `estimate`). The training step computes
    the values only while a tracker is in use, so `fit` traces the step again. Pass the tracker on
    all workers.

    Args:
        log_freq: int, the number of steps (batches) between two measurements. Defaults to 1.
        per_variable: bool, whether the logs of an epoch include each variable. Defaults to `True`.

    Attributes:
        steps: list of the measured steps, counted from 1 over all epochs.
        paths: the paths of the V variables.
        values: list of arrays ``[V + 1]``, one for each measured step. An array has the value for
            each variable, and at its end the value for all variables. The value is NaN for a
            variable whose gradients are all zero.

    Raises:
        ValueError: if `log_freq` is not a positive int; when training starts, if the model was not
            compiled under an `AdasumMirroredStrategy`.

    Example:
        >>> tracker = tf_adasum.callbacks.OrthogonalityTracker(log_freq=2)
        >>> history = model.fit(x, y, batch_size=4, callbacks=[tracker], verbose=0)
        >>> tracker.steps, history.history["orthogonality"]  # always 1 with one replica
        ([2, 4], [1.0])
        >>> axes = tracker.plot().axes  # and .savefig("orthogonality.png")

    Reference:
        Maleki et al., MLSys 2021 (arXiv 2006.02924), "Orthogonality of Gradients".
    """

    arguments = ("log_freq", "per_variable")

    def __init__(self, log_freq: int = 1, per_variable: bool = True, *, every: int | None = None):
        super().__init__(frequency("log_freq", log_freq, every))
        self.per_variable = per_variable
        self.paths: list[str] = []
        self.gram_terms: list[np.ndarray] = []

    def on_train_begin(self, logs=None):
        """Add the measurement to the training step."""
        if self.model.built:
            with self.model.distribute_strategy.scope():
                keras_compat.build(self.model.optimizer, self.model.trainable_variables)
        states = keras_compat.aggregation_states_of(self.model.optimizer)
        if len(states) > 1:
            raise ValueError(
                "OrthogonalityTracker measures the gradient of all variables, which one optimizer "
                "updates. Received: a model whose optimizer, "
                f"{self.model.optimizer.name!r}, holds {len(states)} optimizers"
            )
        if not states:
            raise ValueError(
                "OrthogonalityTracker needs a model that was compiled under an "
                "AdasumMirroredStrategy."
            )
        (state,) = states
        self._replicas = state.num_combined
        self._state = state
        self.paths = state.paths
        with self.model.distribute_strategy.scope():
            state.measure_orthogonality()
        self.model.make_train_function(force=True)

    def measure(self) -> np.ndarray | None:
        """Return the measured values, or None before the first reduction."""
        values = self._state.orthogonality.numpy()
        if not np.isfinite(values).any():
            return None
        self.gram_terms.append(self._state.gram_terms.numpy())
        return values

    def estimate(
        self, replicas: Iterable[int] | Mapping[int, float], steps: int | None = None
    ) -> dict[int, float]:
        """Estimate the training so far on other numbers of replicas, with the same samples in each.

        To first order, a step of N replicas moves as far down as this many steps of one replica:

            progress = Σ_s ‖μ_s‖² C_s / Σ_s ‖μ_s‖²

        over the variables s, where μ_s is the expected gradient, and C_s the sum of the
        coefficients of Adasum's tree for the measured mean of ‖g_s‖² and ‖μ_s‖². It lies between 1,
        as with averaging, and N, as with a sum. docs/virtual_replicas.md has measured errors of the
        estimate.

        Args:
            replicas: list of numbers of replicas; or a dict from numbers to seconds per step.
            steps: the number of steps to convert. Defaults to all steps so far.

        Returns:
            For each number, the steps that would reach the same loss; or the seconds, for a dict.

        Raises:
            ValueError: if no step of several replicas was measured.

        Example:
            >>> tracker = tf_adasum.callbacks.OrthogonalityTracker()
            >>> history = model.fit(x, y, callbacks=[tracker], verbose=0)
            >>> if strategy.num_virtual_replicas > 1:
            ...     steps = tracker.estimate([8, 16, 32, 64])
        """
        if not self.gram_terms or self._replicas == 1:
            raise ValueError(
                "`estimate` needs measured steps of several replicas. Pass the tracker to `fit` "
                "under AdasumMirroredStrategy(virtual_replicas=8). "
                f"Received: {len(self.gram_terms)} measured steps"
            )
        seconds = replicas if isinstance(replicas, Mapping) else {}
        own = self._counter.step if steps is None else steps
        return {
            each: own * progress.ratio(self.gram_terms, self._replicas, each) * seconds.get(each, 1)
            for each in replicas
        }

    def show(self, value: np.ndarray, logs: dict[str, typing.Any]) -> None:
        """Put the value for all variables together into the logs of a batch."""
        logs["orthogonality"] = float(value[-1])

    def on_epoch_end(self, epoch, logs=None):
        """Put the means of the epoch into the logs."""
        measured = np.reshape(self.values_of_epoch, [-1, len(self.paths) + 1])
        *of_variables, overall = (_mean(column) for column in measured.T)
        names = [f"orthogonality/{path}" for path in self.paths] if self.per_variable else []
        terms = self.gram_terms[len(self.gram_terms) - len(measured) :]
        if logs is not None:
            hidden = map(keras_compat.Hidden, of_variables)
            logs.update({**dict(zip(names, hidden, strict=False)), "orthogonality": overall})
            if terms and self._replicas > 1:
                logs["progress"] = progress.of_step(np.mean(terms, axis=0), self._replicas)

    def on_train_end(self, logs=None):
        """Remove the measurement from the training step."""
        self._state.stop_measuring_orthogonality()
        self.model.train_function = None  # `fit` makes a new one

    def draw(self, axes: "Axes") -> None:
        """Draw a heat map with a row for each variable and for all, and a column for each step."""
        rows = [*self.paths, "all variables"]
        mesh = axes.imshow(
            np.transpose(self.values), aspect="auto", interpolation="nearest", vmin=0, vmax=1
        )
        axes.set_yticks(range(len(rows)), rows)
        columns = np.unique(np.linspace(0, len(self.steps) - 1, 8, dtype=int))
        axes.set_xticks(columns, [self.steps[column] for column in columns])
        axes.set_xlabel("step")
        axes.figure.colorbar(mesh, ax=axes, label="orthogonality")

    @property
    def figure_inches(self) -> tuple[float, float]:
        """The size of a figure with a row for each variable."""
        return 8, 1.5 + 0.25 * (len(self.paths) + 1)


def _mean(values):
    """Return the mean of the values other than NaN; NaN if all are NaN."""
    measured = values[np.isfinite(values)]
    return float(np.mean(measured)) if len(measured) else float("nan")
