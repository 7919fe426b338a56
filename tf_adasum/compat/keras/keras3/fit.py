"""Hooks into training with Keras 3."""

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.batch_logs import has_keras_steps
from tf_adasum.compat.keras.calls import count_step, reduces_logs
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.jit import compiled_where_possible
from tf_adasum.compat.keras.keras3.logs import returning_logs, returning_own_logs
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.compat.keras.private_names_keras3 import ENDING_CALLS, Trainer

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
    is_requested, self.jit_compile = self.jit_compile, False
    try:
        if is_requested and not self.run_eagerly:
            step_function = compiled_where_possible(self, step_function)
        if call == "fit":

            def results():
                return tf.nest.flatten(keras.Model.get_metrics_result(self))

            step_function = strategy._virtual_replicas.each(step_function, results)
        is_own = not has_keras_steps(self, call)
        averaging_logs = original(self, returning_logs(step_function, is_own))
        keeping_logs = original(self, returning_own_logs(step_function))
    finally:
        self.jit_compile = is_requested

    def function(iterator):
        if reduces_logs(call):
            return averaging_logs(iterator)
        if call == "evaluate" and count_step() % STEPS_WITHOUT_SYNC == 0:
            strategy._workers.gather([])
        return keeping_logs(iterator)

    return strategy._nonfinite.raising_plain_errors(function)


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


def set_initial_epoch(model, epoch):
    """Set the epoch in which `fit` starts. With 0, `fit` uses its argument `initial_epoch`."""
    model._initial_epoch = epoch
