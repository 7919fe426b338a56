"""The seam to Keras: every private Keras name this package touches is in this file.

`install()` wraps, once per process, three functions of Keras 3. Each wrapper does nothing unless
the current strategy is one of ours (it has `gradient_reduction`, see `AdasumMirroredStrategy`).

* `TFOptimizer._all_reduce_sum_gradients`: the one place where every Keras optimizer, `train_step`,
  custom loop and gradient accumulation reduces gradients. The wrapper marks the reduction, and
  gives every gradient its variable's static shape.
  Fails loudly in `test_every_optimizer_reduction_is_marked`.
* `keras.src.losses.loss.scale_loss_for_distribution` and its inverse: Keras divides mean-type
  losses by the number of replicas, because it will sum the gradients. A non-linear rule wants each
  replica's own gradient, so there both are the identity; nothing has to be multiplied back, and
  clipping sees the right magnitude.
  Fails loudly in `test_identical_data_equals_one_replica`.
* `TensorFlowTrainer._maybe_symbolic_build`: averages the first *data batch* over the workers, with
  a collective that breaks under multi-worker strategies, only to learn its shapes. The wrapper
  hands it the first local batch.
  Fails loudly in `test_unbuilt_model_trains`.

`tests/unit/test_seams.py` fails with the name of what a new Keras has moved.
"""

import functools

import keras
import tensorflow as tf

try:
    from keras.src.backend.tensorflow.optimizer import TFOptimizer, filter_empty_gradients
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.losses import loss as loss_module
except ImportError as error:
    raise ImportError(
        f"tf_adasum works with Keras 3.15 on TensorFlow; Keras {keras.__version__} has moved "
        f"something it builds on: {error}. Install a supported one: pip install 'keras>=3.15,<3.16'"
    ) from error


def install():
    """Wraps the three functions; again is harmless.

    Raises:
        RuntimeError: if Keras runs on another backend than TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tf_adasum needs Keras on TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    _wrap(TFOptimizer, "_all_reduce_sum_gradients", _marking_gradients)
    _wrap(loss_module, "scale_loss_for_distribution", _identity_where_marked)
    _wrap(loss_module, "unscale_loss_for_distribution", _identity_where_marked)
    _wrap(TensorFlowTrainer, "_maybe_symbolic_build", _building_from_local_batch)


def _wrap(owner, name, wrapper):
    original = getattr(owner, name)
    if getattr(original, "wrapped_by_tf_adasum", False):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    wrapped.wrapped_by_tf_adasum = True
    setattr(owner, name, wrapped)


def _marker(strategy):
    """The strategy's `gradient_reduction`; None where Keras and TensorFlow go their own way."""
    return getattr(strategy, "gradient_reduction", None)


def _marking_gradients(original):
    def all_reduce_sum_gradients(self, grads_and_vars):
        replica_context = tf.distribute.get_replica_context()
        marker = replica_context and _marker(replica_context.strategy)
        if not marker:
            return original(self, grads_and_vars)
        grads_and_vars = list(grads_and_vars)
        # Inside a cond, as gradient accumulation makes one, static shapes are lost.
        gradients = [
            tf.ensure_shape(tf.convert_to_tensor(gradient), variable.shape)
            for gradient, variable in filter_empty_gradients(grads_and_vars)
        ]
        if gradients:
            gradients = replica_context.all_reduce("SUM", gradients, options=marker)
        combined = iter(gradients)
        return [(None if g is None else next(combined), v) for g, v in grads_and_vars]

    return all_reduce_sum_gradients


def _identity_where_marked(original):
    def scale_loss(value):
        return value if _marker(tf.distribute.get_strategy()) else original(value)

    return scale_loss


def _building_from_local_batch(original):
    def maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self._distribute_strategy
        if iterator is None or not hasattr(strategy, "gradient_reduction"):
            return original(self, iterator=iterator, data_batch=data_batch)
        _, _, batches = next(iter(iterator))
        first_local_batch = tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], next(batches)
        )
        return original(self, data_batch=first_local_batch)

    return maybe_symbolic_build
