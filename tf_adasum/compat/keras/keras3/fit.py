"""Hooks into training with Keras 3."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.fit import count_step, reduces_logs, synchronize
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.jit import compiled_where_possible
from tf_adasum.compat.keras.keras3.logs import (
    MetricsInLogs,
    returning_logs,
    returning_own_logs,
)
from tf_adasum.compat.keras.keras3.private_names import (
    ENDING_CALLS,
    BaseTrainer,
    Trainer,
    class_weight_to_sample_weights,
    pythonify_logs,
)
from tf_adasum.compat.keras.optimizers import is_ours

# Callbacks that write to a path. One worker is enough to write.
CALLBACKS_OF_WORKER_0 = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
)

# How many steps of `evaluate` a worker takes without waiting for the others. If it were far ahead,
# it would wait so long for the result that the failure detector would report the others.
STEPS_WITHOUT_SYNC = 64

# Whether Keras's `BackupAndRestore` supports only one worker.
KERAS_BACKUP_IS_SINGLE_WORKER = True


@hooks.replaces(Trainer, "_make_function")
def make_function(original, self, step_function):
    """Let XLA compile only the forward and backward passes.

    Keras would compile the whole step, but TensorFlow's collectives have no XLA kernels. A step may
    return variables, such as the result of a metric. Each replica reads its own values of these
    variables. If a gradient is not finite, `on_nonfinite="raise"` lets the step raise a
    FloatingPointError. If the step is a `tf.function`, its Python function is used, because
    replicas cannot exchange gradients inside a nested `tf.function`.

    If no callback reads the logs of a step, the replicas do not exchange them. At the end of an
    epoch, Keras reads the model's metrics instead. In `evaluate`, the workers then wait for each
    other in every `STEPS_WITHOUT_SYNC`-th step, so that no worker is far ahead.
    """
    strategy = self._distribute_strategy
    if not is_ours(strategy):
        return original(self, step_function)
    call = "evaluate" if step_function == self.test_step else "fit"
    step_function = tensorflow_compat.python_function_of(step_function)
    is_asked_for, self.jit_compile = self.jit_compile, False
    try:
        if is_asked_for and not self.run_eagerly:
            step_function = compiled_where_possible(self, step_function)
        if call == "fit":
            results = functools.partial(_results_of_metrics, self)
            step_function = strategy.virtual_replicas.each(step_function, results)
        metrics = MetricsInLogs(self)
        averaging = original(self, returning_logs(step_function, metrics))
        alone = original(self, returning_own_logs(step_function))
    finally:
        self.jit_compile = is_asked_for

    def function(iterator):
        if reduces_logs(call):
            return metrics.note(averaging(iterator))
        if call == "evaluate" and count_step() % STEPS_WITHOUT_SYNC == 0:
            strategy.workers.gather([])
        return alone(iterator)

    return strategy.nonfinite.raising_plain_errors(function)


def _results_of_metrics(model):
    return tf.nest.flatten(keras.Model.get_metrics_result(model))


@hooks.replaces(BaseTrainer, "_symbolic_build")
def symbolic_build(original, self, iterator=None, data_batch=None):
    """Build the model with a row of zeros if this worker has no rows.

    Recurrent layers cannot be traced without rows.
    """
    if data_batch is not None and is_ours(self._distribute_strategy):
        data_batch = tf.nest.map_structure(_with_a_row, data_batch)
    return original(self, iterator=iterator, data_batch=data_batch)


def _with_a_row(value):
    if not isinstance(value, tf.Tensor) or not value.shape.rank or value.shape[0] != 0:
        return value
    return tf.zeros([1, *value.shape[1:]], value.dtype)


@hooks.replaces(Trainer, "train_on_batch", "test_on_batch", "predict_on_batch")
def on_batch(original, self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
    """Divide the batch among replicas, because Keras passes the whole batch to every replica."""
    strategy = self._distribute_strategy
    given = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
    kwargs |= {name: value for name, value in given.items() if value is not None}
    refused = class_weight is not None and sample_weight is not None  # by Keras
    if not is_ours(strategy) or refused:
        return original(self, x, **kwargs)
    _check_arrays(original.__name__, {"x": x, "y": y})
    if strategy.num_replicas_in_sync == 1:
        return original(self, x, **kwargs)
    if sample_weight is not None and tf.nest.is_nested(sample_weight):
        if all(np.isscalar(weight) for weight in tf.nest.flatten(sample_weight)):
            kwargs["sample_weight"] = np.asarray(sample_weight)
    if class_weight is not None:
        weights = class_weight_to_sample_weights(y, kwargs.pop("class_weight"))
        kwargs["sample_weight"] = weights
    names = [name for name in ("y", "sample_weight") if name in kwargs]
    if original.__name__ != "train_on_batch":
        synchronize(self)
    x, *others = strategy.split_batch([x, *(kwargs[name] for name in names)])
    kwargs |= dict(zip(names, others, strict=True))
    if original.__name__ == "predict_on_batch":
        return original(self, x, **kwargs)
    # The step returns the mean of the replicas' own metrics. The logs below cover all rows.
    wants_dict = kwargs.pop("return_dict", False)
    logs = original(self, x, **kwargs, return_dict=True)
    logs = pythonify_logs(self._get_metrics_result_or_logs(logs))
    return logs if wants_dict else self._flatten_metrics_in_order(logs)


def _check_arrays(name, given):
    for argument, value in given.items():
        if any(np.isscalar(each) for each in tf.nest.flatten(value)):
            raise ValueError(
                f"{name} needs arrays, or structures of them: {name}(np.asarray({argument}), ...). "
                f"Received: {argument}={type(value).__name__} of numbers"
            )


def disable_async_callbacks(callback_list):
    """Let a `CallbackList` finish the calls after each batch before the next batch begins.

    If no callback of the user has a method for the end of batches, Keras makes these calls in
    another thread while training continues. Collectives are not possible in that thread.
    """
    callback_list._async_train = False


def flush_async_callbacks(callback_list):
    """Wait until a `CallbackList` has finished its calls in other threads."""
    end = next(name for name in ENDING_CALLS if hasattr(callback_list, name))
    getattr(callback_list, end)()


def initial_epoch(model):
    """Return the epoch in which `fit` starts: `Model._initial_epoch`, set by BackupAndRestore."""
    return model._initial_epoch or 0


def set_initial_epoch(model, epoch):
    """Set the epoch in which `fit` starts. With 0, `fit` uses its argument `initial_epoch`."""
    model._initial_epoch = epoch
