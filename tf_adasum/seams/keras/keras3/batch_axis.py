"""Refuses models whose batch axis is not dimension 0: replicas get parts along dimension 0."""

import tensorflow as tf

from tf_adasum.errors import see
from tf_adasum.seams.keras.generation import hooks
from tf_adasum.seams.keras.keras3.private_names import Trainer
from tf_adasum.seams.keras.optimizers import is_ours


@hooks.replaces(Trainer, "fit", "evaluate", "predict")
def check_batch_axis(original, self, x=None, *args, **kwargs):
    """Refuse a model with inputs or outputs in which dimension 0 is not the batch axis.

    Each replica would get a part of another axis, such as time, and train on that.
    """
    strategy = self.distribute_strategy
    if is_ours(strategy) and strategy.num_replicas_in_sync > 1:
        replicas = strategy.num_replicas_in_sync
        if found := _other_input(self, x, replicas) or _other_output(self):
            raise ValueError(
                f"The model {self.name!r} needs the batch axis as dimension 0 of its inputs and "
                "outputs, because the strategy divides data over the replicas along this "
                "dimension. Create its inputs with keras.Input(shape=...), and transpose inside "
                f"the model. Received: {found} {see('TFA-314')}"
            )
    return original(self, x, *args, **kwargs)


def _other_input(model, data, replicas):
    """Return an input, as text, whose dimension 0 has a length that no replica's part can have.

    Only if another axis has an unknown length, as the batch axis has. A model that generates text
    has batches of one row. "" if there is none.
    """
    shapes = [each.shape for each in tensors_of(model, "inputs")]
    fixed = [shape for shape in shapes if shape and (shape[0] or 0) > 1 and None in shape[1:]]
    rows = rows_of(data)
    if not fixed or rows is None or rows >= fixed[0][0] * replicas:
        return ""
    return f"an input of the shape {tuple(fixed[0])} and {rows} rows for {replicas} replicas"


def _other_output(model):
    """Return an output, as text, in which an axis behind dimension 0 has the length of the batch.

    "" if there is none, or the unknown length may belong to another axis.
    """
    shapes = [each.shape for each in tensors_of(model, "inputs")]
    if any(shape[:1] != (None,) or None in shape[1:] for shape in shapes):
        return ""
    for each in tensors_of(model, "outputs"):
        if each.shape and each.shape[0] is not None and None in each.shape[1:]:
            return f"an output of the shape {tuple(each.shape)}"
    return ""


def tensors_of(model, name):
    """Return the symbolic inputs or outputs of a functional model; none of others."""
    try:
        return tf.nest.flatten(getattr(model, name, None) or [])
    except (AttributeError, ValueError):  # of a Sequential that is not built
        return []


def rows_of(data):
    """Return the length of dimension 0 of arrays, or of a dataset's batches; None if unknown."""
    spec = data.element_spec if isinstance(data, tf.data.Dataset) else data
    for each in tf.nest.flatten(spec)[:1]:
        shape = getattr(each, "shape", None)
        return shape[0] if shape else None
    return None
