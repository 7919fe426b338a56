"""Runs `predict` on this worker only, without collectives, if other workers are not needed."""

import weakref

import tensorflow as tf

from tf_adasum.compat import one_worker
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.call_settings import inputs_of

# For each model: the settings, and the `predict_function` without a strategy for these settings.
_functions = weakref.WeakKeyDictionary()


def is_alone(call):
    """Return whether a call of `predict` needs no other worker."""
    is_for_this_worker = one_worker.is_alone() or one_worker.is_called_by(one_worker.TRACKERS)
    if call.strategy._workers.count > 1 and is_for_this_worker:
        return True
    is_several = call.strategy.num_replicas_in_sync > 1
    return is_several and _is_one_fixed_batch(call.model, call.arguments["x"])


def predict(call):
    """Predict without the strategy, and return the predictions.

    Experiment trackers, and callbacks that run on worker 0 only, call `predict` on one worker. For
    example, `mlflow.autolog()` calls `predict` on the worker that logs, to record the model's
    signature. If a model has a fixed batch size, such as a model that generates text, a single
    batch cannot be divided. So each worker predicts the whole batch.
    """
    model, strategy = call.model, call.strategy
    settings = model.run_eagerly, model.steps_per_execution, model.jit_compile
    known, function = _functions.get(model, (None, None))
    of_all_workers = model.predict_function
    model.predict_function = function if known == settings else None
    try:
        with tensorflow_compat.without_strategy() as model._distribute_strategy:
            return call.result()
    finally:
        _functions[model] = settings, model.predict_function
        model._distribute_strategy, model.predict_function = strategy, of_all_workers


def _is_one_fixed_batch(model, x):
    """Return whether `x` has as many rows as the fixed batch size of the model's inputs.

    An input of shape (1, None) has the fixed batch size 1. An input of shape (5, None) has no fixed
    batch size, because its batch axis may be the second axis.
    """
    shapes = [tuple(each.shape) for each in inputs_of(model) if each.shape]
    sizes = {shape[0] for shape in shapes if shape[0] == 1 or None not in shape[1:]}
    return bool(shapes) and len(sizes) == 1 and None not in sizes and {_batch_size_of(x)} == sizes


def _batch_size_of(data):
    """Return the length of dimension 0 of arrays, or of a dataset's batches; None if unknown."""
    spec = data.element_spec if isinstance(data, tf.data.Dataset) else data
    shapes = [getattr(each, "shape", None) for each in tf.nest.flatten(spec)]
    return shapes[0][0] if shapes and shapes[0] else None
