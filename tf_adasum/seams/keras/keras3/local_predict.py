"""`predict` that one worker calls alone: it runs on this worker only, without collectives."""

import weakref

from tf_adasum.seams import one_worker
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.private_names import Trainer
from tf_adasum.seams.keras.optimizers import is_ours

# For each model the function that predicts without a strategy, and for which settings it was made.
_functions = weakref.WeakKeyDictionary()


@hooks.replaces(Trainer, "predict", outermost=True)
def predict(original, self, *args, **kwargs):
    """Predict on this worker only if the other workers do not call `predict`.

    Callbacks that run on worker 0 only and experiment trackers do this: `mlflow.autolog()` calls
    `predict` on the worker that logs, to record the model's signature. All workers have the same
    weights, so the predictions are the same.
    """
    strategy = self._distribute_strategy
    if not is_ours(strategy) or strategy.workers.count == 1 or not _is_for_this_worker():
        return original(self, *args, **kwargs)
    settings = self.run_eagerly, self.steps_per_execution, self.jit_compile
    known, function = _functions.get(self, (None, None))
    of_all_workers = self.predict_function
    self.predict_function = function if known == settings else None
    try:
        with tensorflow_seam.without_strategy() as self._distribute_strategy:
            return original(self, *args, **kwargs)
    finally:
        _functions[self] = settings, self.predict_function
        self._distribute_strategy, self.predict_function = strategy, of_all_workers


def _is_for_this_worker():
    return one_worker.is_alone() or one_worker.is_called_by(one_worker.TRACKERS)
