"""Building of Keras 3 models that have no input shape, before their first step."""

import weakref

import tensorflow as tf

from tf_adasum.errors import see
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.seams.keras.fit import call_under_way
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3 import py_datasets
from tf_adasum.seams.keras.keras3.epochs import dataset_of, note_iterator
from tf_adasum.seams.keras.keras3.private_names import Trainer
from tf_adasum.seams.keras.optimizers import is_ours

# The models that tracing a step has built, whatever their attribute `built` says.
_built_by_step = weakref.WeakSet()


@hooks.replaces(Trainer, "_maybe_symbolic_build")
def maybe_symbolic_build(original, self, iterator=None, data_batch=None):
    """Hand Keras the first local batch; trace a step of the user's, which says what there is.

    Keras averages the first *data batch* over the workers, with a collective that breaks under
    multi-worker strategies, and then calls the model with it. A model with its own `train_step` may
    have no `call`, as most GANs, or one of something else than the data. `fit` hands over the
    iterator of its epochs, which is kept in mind. `test_unbuilt_model_trains` fails without it.
    """
    if iterator is not None:
        note_iterator(self, iterator)
    strategy = self._distribute_strategy
    if not is_ours(strategy):
        return original(self, iterator=iterator, data_batch=data_batch)
    if iterator is not None:
        py_datasets.share_seed(strategy, iterator.data_adapter)
    if _is_all_built(self):  # and no iterator is begun, to be thrown away at once
        return None
    is_training = call_under_way() in ("fit", "train_on_batch")
    step = self.train_step if is_training else self.test_step
    if _is_users_own(step):
        # Without a graph the first step builds: it may ask for values.
        if not (self.run_eagerly or (self.train_function if is_training else self.test_function)):
            data = dataset_of(iterator).element_spec if iterator is not None else data_batch
            as_fit = getattr(self, "_autoconvert_optionals", lambda step: step)  # since Keras 3.12
            tensorflow_seam.trace(strategy, as_fit(step), data)
            _built_by_step.add(self)
        return None
    if iterator is not None:
        try:
            *_, batches = next(iter(iterator))
            data_batch = next(batches)
        except StopIteration:
            raise ValueError(
                "The data have no batch, not even one to build the model from: are there fewer "
                f"rows than the batch size, with drop_remainder=True? {see('TFA-406')}"
            ) from None
    first_local_batch = tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], data_batch
    )
    return original(self, data_batch=first_local_batch)


def is_model_built(model):
    """Whether a model has its variables; one without `call`, as most GANs, is never `built`."""
    return model.built or model in _built_by_step


def _is_all_built(model):
    """Whether there is nothing that Keras builds from the first batch."""
    compiled = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(part is None or part.built for part in [*model._flatten_layers(), *compiled])


def _is_users_own(step):
    """Whether a model's `train_step` or `test_step` is another one than Keras's."""
    function = getattr(step, "__func__", None)
    return function not in (Trainer.train_step, Trainer.test_step)
