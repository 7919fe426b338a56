"""Runs `predict` on this worker only, without collectives, if other workers are not needed."""

import weakref

from tf_adasum.compat import one_worker
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.batch_axis import rows_of, tensors_of
from tf_adasum.compat.keras.keras3.private_names import Trainer
from tf_adasum.compat.keras.optimizers import is_ours

# For each model: the settings, and the `predict_function` without a strategy for these settings.
_functions = weakref.WeakKeyDictionary()


@hooks.replaces(Trainer, "predict", outermost=True)
def predict(original, self, x, *args, **kwargs):
    """Predict on this worker only, if the other workers do not call `predict` or are not needed.

    Experiment trackers, and callbacks that run on worker 0 only, call `predict` on one worker. For
    example, `mlflow.autolog()` calls `predict` on the worker that logs, to record the model's
    signature. All workers have the same weights, so the predictions are the same. If a model has a
    fixed batch size, such as a model that generates text, a single batch cannot be divided. So each
    worker predicts the whole batch.
    """
    strategy = self._distribute_strategy
    if not is_ours(strategy) or not (
        (strategy.workers.count > 1 and _is_for_this_worker())
        or (strategy.num_replicas_in_sync > 1 and _is_one_fixed_batch(self, x))
    ):
        return original(self, x, *args, **kwargs)
    settings = self.run_eagerly, self.steps_per_execution, self.jit_compile
    known, function = _functions.get(self, (None, None))
    of_all_workers = self.predict_function
    self.predict_function = function if known == settings else None
    try:
        with tensorflow_compat.without_strategy() as self._distribute_strategy:
            return original(self, x, *args, **kwargs)
    finally:
        _functions[self] = settings, self.predict_function
        self._distribute_strategy, self.predict_function = strategy, of_all_workers


def _is_for_this_worker():
    return one_worker.is_alone() or one_worker.is_called_by(one_worker.TRACKERS)


def _is_one_fixed_batch(model, x):
    """Return whether `x` has as many rows as the fixed batch size of the model's inputs.

    An input of shape (1, None) has the fixed batch size 1. An input of shape (5, None) has no fixed
    batch size, because its batch axis may be the second axis.
    """
    shapes = [tuple(each.shape) for each in tensors_of(model, "inputs") if each.shape]
    sizes = {shape[0] for shape in shapes if shape[0] == 1 or None not in shape[1:]}
    return bool(shapes) and len(sizes) == 1 and None not in sizes and {rows_of(x)} == sizes
