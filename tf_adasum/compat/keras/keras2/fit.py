"""Hooks into training with Keras 2."""

import warnings

import keras
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.compat.keras.private_names_keras2 import TensorLikeDataAdapter
from tf_adasum.errors import see

# With Keras 2 all other callbacks write on all workers, because reading the statistics of replicas
# needs all workers. All workers except worker 0 write to a temporary file.
CALLBACKS_OF_WORKER_0 = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)


@hooks.replaces(TensorLikeDataAdapter, "__init__")
def adapt_arrays(original, self, *args, **kwargs):
    """Shuffle arrays on all workers with worker 0's seed.

    In Keras each worker shuffles separately, so some rows are used twice and others never.
    """
    strategy = tf.distribute.get_strategy()
    if kwargs.get("shuffle") and is_ours(strategy):
        seed = strategy._seeds.shared_if_needed()
        if seed is not None:
            with tensorflow_compat.seeded(seed):
                return original(self, *args, **kwargs)
    return original(self, *args, **kwargs)


@hooks.replaces(keras.Model, "make_train_function")
def make_train_function(original, self, force=False):
    """Train without XLA, and let `on_nonfinite="raise"` raise a FloatingPointError.

    TensorFlow's collectives have no XLA kernels. If the user has requested XLA, print a warning.
    """
    strategy = self.distribute_strategy
    if not is_ours(strategy):
        return original(self, force)
    if self.jit_compile and not self.run_eagerly:
        warnings.warn(
            "AdasumMirroredStrategy trains this model without XLA, because TensorFlow's "
            "collectives have no XLA kernels. Compile the model with jit_compile=False to silence "
            f"this warning. {see('TFA-304')}",
            stacklevel=3,
        )
    self.jit_compile = False
    is_new = self.train_function is None or force
    function = original(self, force)
    if is_new:
        self.train_function = function = strategy._nonfinite.raising_plain_errors(function)
    return function


def forget_assigned(strategy):
    """Do nothing, because assignments are not noted."""


def reduction_of(variable):
    """Return None, because Keras 2 adds up the replicas' values of every metric."""
