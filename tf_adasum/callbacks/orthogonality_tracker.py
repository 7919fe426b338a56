"""OrthogonalityTracker: how much the replicas' gradients have in common, over training."""

import keras
import numpy as np

from tf_adasum.callbacks.step_tracker import StepTracker
from tf_adasum.seams import keras as keras_seam


@keras.saving.register_keras_serializable("tf_adasum")
class OrthogonalityTracker(StepTracker):
    """Measures the orthogonality of the replicas' gradients, per variable and overall.

    ``‖adasum(g_1 … g_N)‖² / Σ_i ‖g_i‖²``: 1 where the gradients of all replicas are orthogonal and
    Adasum adds them, 1/N where they are the same and it averages. It can fall below that where they
    point apart. With `local_reduction` the g_i are the means of each host.

    Every `every` steps ``logs["orthogonality"]`` has the overall value; at the end of an epoch it
    has the epoch's mean, and ``logs["orthogonality/PATH"]`` that of each variable. So History,
    CSVLogger, TensorBoard and the progress bar show them; loggers come after this callback in the
    list. The training step computes the values only while a tracker is in use: `fit` traces it
    anew. Pass it on all workers.

    Args:
        every: steps (calls of the training function) between two measurements.
        per_variable: whether the logs of an epoch have the values of each variable.

    Attributes:
        steps: list of the steps measured, counted from 1 over all epochs.
        paths: the paths of the variables, V of them.
        values: list of arrays ``[V + 1]``, one for each step: each variable, then overall. NaN for
            a variable whose gradients are zero everywhere.

    Raises:
        ValueError: if `every` is no positive int; when training starts, if the model was not
            compiled under an `AdasumMirroredStrategy`, or under one with ``aggregation="mean"``,
            which is TensorFlow's own all-reduce.

    Example:
        >>> tracker = tf_adasum.callbacks.OrthogonalityTracker(every=10)
        >>> model.fit(dataset, callbacks=[tracker])
        >>> tracker.plot().savefig("orthogonality.png")

    Reference:
        Maleki et al., MLSys 2021 (arXiv 2006.02924), "Orthogonality of Gradients".
    """

    def __init__(self, every=1, per_variable=True):
        super().__init__(every)
        self.per_variable = per_variable
        self.paths = []

    def get_config(self):
        """Returns the constructor's arguments."""
        return {**super().get_config(), "per_variable": self.per_variable}

    def on_train_begin(self, logs=None):
        """Lets the training step measure."""
        if self.model.built:
            with self.model.distribute_strategy.scope():
                keras_seam.build(self.model.optimizer, self.model.trainable_variables)
        reductions = keras_seam.reductions_of(self.model.optimizer)
        if reductions is None:
            raise ValueError(
                "OrthogonalityTracker needs a model that was compiled under an "
                "AdasumMirroredStrategy, with another rule than 'mean' (TensorFlow's own "
                "all-reduce, which has no inner products)."
            )
        self._reductions = reductions
        self.paths = reductions.paths
        with self.model.distribute_strategy.scope():
            reductions.measure_orthogonality()
        self.model.make_train_function(force=True)

    def measure(self):
        """Reads the values; None before the first reduction."""
        values = self._reductions.orthogonality.numpy()
        return values if np.isfinite(values).any() else None

    def on_train_batch_end(self, batch, logs=None):
        """Measures, when it is time, and shows the last value."""
        super().on_train_batch_end(batch, logs)
        if logs is not None and self.values:
            logs["orthogonality"] = float(self.values[-1][-1])

    def on_epoch_end(self, epoch, logs=None):
        """Puts the means of the epoch into the logs."""
        measured = np.reshape(self.values_of_epoch, [-1, len(self.paths) + 1])
        if logs is None:
            return
        logs["orthogonality"] = _mean(measured[:, -1])
        if self.per_variable:
            for number, path in enumerate(self.paths):
                logs[f"orthogonality/{path}"] = _mean(measured[:, number])

    def on_train_end(self, logs=None):
        """Takes the measurement out of the training step."""
        self._reductions.stop_measuring_orthogonality()
        self.model.train_function = None  # `fit` makes a new one

    def draw(self, axes):
        """Draws a heat map: a row for each variable and one for all, a column for each step."""
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
    def figure_inches(self):
        """A line for each variable."""
        return 8, 1.5 + 0.25 * (len(self.paths) + 1)


def _mean(values):
    """The mean of those that are no NaN; NaN if all are."""
    measured = values[np.isfinite(values)]
    return float(np.mean(measured)) if len(measured) else float("nan")
