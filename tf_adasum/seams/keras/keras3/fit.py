"""Training with Keras 3."""

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.seams.keras.fit import leave_xla_out, synchronize
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3 import py_datasets
from tf_adasum.seams.keras.keras3.epochs import note_iterator
from tf_adasum.seams.keras.keras3.private_names import (
    Trainer,
    class_weight_to_sample_weights,
    pythonify_logs,
)
from tf_adasum.seams.keras.optimizers import is_ours

# What writes to a path: one worker is enough.
CALLBACKS_OF_WORKER_0 = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
)

# Whether Keras's `BackupAndRestore` knows one worker only.
BACKS_UP_ONE_WORKER = True


@hooks.replaces(Trainer, "_maybe_symbolic_build")
def maybe_symbolic_build(original, self, iterator=None, data_batch=None):
    """Hand Keras the first local batch, of which it needs the shapes only.

    Keras averages the first *data batch* over the workers, with a collective that breaks under
    multi-worker strategies. `fit` hands over the iterator of its epochs, which is kept in mind.
    `test_unbuilt_model_trains` fails without it.
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
    if iterator is not None:
        _, _, batches = next(iter(iterator))
        data_batch = next(batches)
    first_local_batch = tf.nest.map_structure(
        lambda value: strategy.experimental_local_results(value)[0], data_batch
    )
    return original(self, data_batch=first_local_batch)


def _is_all_built(model):
    """Whether there is nothing that Keras builds from the first batch."""
    compiled = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(part is None or part.built for part in [*model._flatten_layers(), *compiled])


@hooks.replaces(Trainer, "_make_function")
def make_function(original, self, step_function):
    """Train without XLA, and let `on_nonfinite="raise"` raise a FloatingPointError.

    XLA has no kernels for TensorFlow's collectives; where the user asks for it, a warning says so.
    """
    strategy = self._distribute_strategy
    if not is_ours(strategy):
        return original(self, step_function)
    leave_xla_out(self)
    return strategy.nonfinite.raising_plainly(original(self, step_function))


@hooks.replaces(Trainer, "train_on_batch", "test_on_batch", "predict_on_batch")
def on_batch(original, self, x, y=None, sample_weight=None, class_weight=None, **kwargs):
    """Split the batch: Keras hands the whole one to every replica."""
    strategy = self._distribute_strategy
    given = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
    kwargs |= {name: value for name, value in given.items() if value is not None}
    refused = class_weight is not None and sample_weight is not None  # by Keras
    if not is_ours(strategy) or strategy.num_replicas_in_sync == 1 or refused:
        return original(self, x, **kwargs)
    if sample_weight is not None and tf.nest.is_nested(sample_weight):
        if all(np.isscalar(weight) for weight in tf.nest.flatten(sample_weight)):
            kwargs["sample_weight"] = np.asarray(sample_weight)
    if class_weight is not None:
        weights = class_weight_to_sample_weights(y, kwargs.pop("class_weight"))
        kwargs["sample_weight"] = weights
    names = [name for name in ("y", "sample_weight") if name in kwargs]
    if original.__name__ != "train_on_batch":
        synchronize(getattr(self, "optimizer", None))
    x, *others = strategy.split_batch([x, *(kwargs[name] for name in names)])
    kwargs |= dict(zip(names, others, strict=True))
    if original.__name__ == "predict_on_batch":
        return original(self, x, **kwargs)
    # What the step returns is the mean of the replicas' own metrics; here those of all rows.
    wants_dict = kwargs.pop("return_dict", False)
    logs = original(self, x, **kwargs, return_dict=True)
    logs = pythonify_logs(self._get_metrics_result_or_logs(logs))
    return logs if wants_dict else self._flatten_metrics_in_order(logs)


def call_in_order(callback_list):
    """Let a `CallbackList` call its callbacks after each batch before the next one begins.

    Without a callback that was given and wants to be called after batches, it does so from another
    thread, while the training goes on: no place for collectives.
    """
    callback_list._async_train = False


def initial_epoch(model):
    """Return the epoch in which `fit` starts: `Model._initial_epoch`, set by BackupAndRestore."""
    return model._initial_epoch or 0


def set_initial_epoch(model, epoch):
    """Set the epoch in which `fit` starts; 0 leaves it to the argument of `fit`."""
    model._initial_epoch = epoch
