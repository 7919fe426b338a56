"""Builds Keras 3 models that have no input shape, before their first step."""

import weakref

import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.calls import current_call
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3 import py_datasets
from tf_adasum.compat.keras.keras3.epochs import note_iterator
from tf_adasum.compat.keras.optimizers import is_ours
from tf_adasum.compat.keras.private_names_keras3 import Trainer

# Models that were built by tracing a step. Their attribute `built` may be False.
_built_by_step = weakref.WeakSet()


@hooks.replaces(Trainer, "_maybe_symbolic_build")
def maybe_symbolic_build(original, self, iterator=None, data_batch=None):
    """Build a model from the element spec of its data, or by tracing a step of the user.

    Keras would read a first batch, average it over the workers with a collective that fails under
    multi-worker strategies, and discard the iterator. But the iterator has already read more
    batches, and a generator does not yield these batches again. If a model has its own
    `train_step`, the model is built by tracing this method. Calling the model is not always
    possible: it may have no `call` (like most GANs), or a `call` with other arguments than the
    data. A KerasTensor is not ragged, so ragged data need a step, too. If `fit` passes the iterator
    of its epochs, this iterator is stored.
    `test_each_step_has_the_rows_of_keras_without_a_strategy` fails without this hook.
    """
    if iterator is not None:
        note_iterator(self, iterator)
    strategy = self._distribute_strategy
    if not is_ours(strategy):
        return original(self, iterator=iterator, data_batch=data_batch)
    if iterator is not None:
        py_datasets.share_seed(strategy, iterator.data_adapter)
    if _is_all_built(self):
        return None
    data = data_batch if iterator is None else iterator._distributed_dataset.element_spec
    is_training = current_call() in ("fit", "train_on_batch")
    step = self.train_step if is_training else self.test_step
    needs_step = _is_users_own(step) or _are_shapes_open(data, self.run_eagerly)
    if not needs_step:
        values = data if iterator is None else tensorflow_compat.placeholders(data)
        values = tf.nest.map_structure(lambda each: _of_first_replica(strategy, each), values)
        needs_step = any(isinstance(each, tf.RaggedTensor) for each in tf.nest.flatten(values))
    if needs_step:
        # With `run_eagerly`, the first step builds the model, because the step may need values.
        if not (self.run_eagerly or (self.train_function if is_training else self.test_function)):
            as_fit = getattr(self, "_autoconvert_optionals", lambda step: step)  # since Keras 3.12
            step = as_fit(tensorflow_compat.python_function_of(step))
            tensorflow_compat.trace(strategy, strategy._virtual_replicas.each(step), data)
            _built_by_step.add(self)
        return None
    return original(self, data_batch=tf.nest.map_structure(_with_a_row, values))


def _with_a_row(value):
    """Return a row of zeros for a tensor without rows, as recurrent layers cannot be traced."""
    if not isinstance(value, tf.Tensor) or not value.shape.rank or value.shape[0] != 0:
        return value
    return tf.zeros([1, *value.shape[1:]], value.dtype)


def _of_first_replica(strategy, value):
    is_missing = isinstance(value, tf.experimental.Optional)
    return None if is_missing else strategy.experimental_local_results(value)[0]


def _are_shapes_open(data, run_eagerly):
    """Return whether only a step can build the model, because shapes of the data are unknown.

    A KerasTensor needs a known rank, and layers need known sizes. In an eager step, all sizes are
    known, also the sizes that the spec does not contain. In a graph, Keras raises an error for an
    unknown size.
    """
    specs = tf.nest.flatten(data, expand_composites=True)
    shapes = [tf.TensorShape(spec.shape) for spec in specs if hasattr(spec, "shape")]
    return any(
        shape.rank is None or (run_eagerly and None in shape.as_list()[1:]) for shape in shapes
    )


def is_model_built(model):
    """Return whether a model's variables exist.

    If the model's class defines no `call`, the model's `built` is always False.
    """
    return model.built or model in _built_by_step


def _is_all_built(model):
    """Return whether the layers, metrics, loss and optimizer of a model are all built."""
    compiled = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(part is None or part.built for part in [*model._flatten_layers(), *compiled])


def _is_users_own(step):
    """Return whether a `train_step` or `test_step` is defined by the user."""
    function = getattr(step, "__func__", None)
    return function not in (Trainer.train_step, Trainer.test_step)
