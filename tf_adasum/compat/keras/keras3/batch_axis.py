"""Refuses models whose batch axis is not dimension 0, because data is divided along this axis."""

import tensorflow as tf

from tf_adasum.compat.keras.call_settings import tensors_of
from tf_adasum.errors import see


def check(model, data, strategy):
    """Raise a ValueError if dimension 0 of an input or output of a model is not the batch axis.

    Each replica would get a part of another axis, such as the time steps, instead of some rows.
    """
    replicas = strategy.num_replicas_in_sync
    if found := _other_input(model, data, replicas) or _other_output(model):
        raise ValueError(
            f"The model {model.name!r} needs the batch axis as dimension 0 of its inputs and "
            "outputs, because the strategy divides data over the replicas along this "
            "dimension. Create its inputs with keras.Input(shape=...), and transpose inside "
            f"the model. Received: {found} {see('TFA-314')}"
        )


def _other_input(model, data, replicas):
    """Return the description of an input whose batch axis is not dimension 0, or "".

    Dimension 0 of such an input has a fixed length, and another axis has an unknown length. The
    data has too few rows to give each replica this length. A length of 1 is allowed, for models
    that generate text.
    """
    shapes = [each.shape for each in tensors_of(model, "inputs")]
    fixed = [shape for shape in shapes if shape and (shape[0] or 0) > 1 and None in shape[1:]]
    rows = rows_of(data)
    if not fixed or rows is None or rows >= fixed[0][0] * replicas:
        return ""
    return f"an input of the shape {tuple(fixed[0])} and {rows} rows for {replicas} replicas"


def _other_output(model):
    """Return the description of an output whose batch axis is not dimension 0, or "".

    Also return "" if dimension 0 of an input has a fixed length, or another axis has an unknown
    length. In these cases, the axis of unknown length in an output may not be the batch axis.
    """
    shapes = [each.shape for each in tensors_of(model, "inputs")]
    if any(shape[:1] != (None,) or None in shape[1:] for shape in shapes):
        return ""
    for each in tensors_of(model, "outputs"):
        if each.shape and each.shape[0] is not None and None in each.shape[1:]:
            return f"an output of the shape {tuple(each.shape)}"
    return ""


def rows_of(data):
    """Return the length of dimension 0 of arrays, or of a dataset's batches; None if unknown."""
    spec = data.element_spec if isinstance(data, tf.data.Dataset) else data
    for each in tf.nest.flatten(spec)[:1]:
        shape = getattr(each, "shape", None)
        return shape[0] if shape else None
    return None
