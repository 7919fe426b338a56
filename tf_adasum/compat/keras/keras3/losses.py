"""Divides the losses of `add_loss` by the number of replicas only once, under the rule mean.

Keras divides the value of a `keras.losses.Loss` when the value is computed, and again when it is
passed to `add_loss`. With N replicas, the loss and its gradients would be N times too small.
"""

import weakref

from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3.private_names import (
    ADDED_LOSSES,
    BaseTrainer,
    Trainer,
    losses,
)
from tf_adasum.compat.keras.optimizers import marker_of, our_replica_context
from tf_adasum.errors import see

# Attribute of the tensors that Keras has divided by the number of replicas.
_IS_DIVIDED = "is_divided_by_the_number_of_replicas"

# For each graph: the names of operations whose result is a divided loss, and the names of
# operations that use no divided loss.
_divided, _others = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()


@hooks.replaces(losses, "scale_loss_for_distribution")
def note_division(original, value, /):
    """Mark the values that Keras has divided by the number of replicas."""
    divided = original(value)
    if divided is not value and _divides():
        setattr(divided, _IS_DIVIDED, True)
        if graph := _graph_of(divided):
            _divided.setdefault(graph, set()).add(divided.op.name)
    return divided


@hooks.replaces(Trainer, "_aggregate_additional_loss", feature=ADDED_LOSSES)
def aggregate_additional_loss(original, self, loss):
    """Do not divide a loss by the number of replicas a second time.

    Raise an error if a loss is computed from losses that are already divided.
    """
    if not _divides():
        return original(self, loss)
    if getattr(loss, _IS_DIVIDED, False):
        return BaseTrainer._aggregate_additional_loss(self, loss)
    if _uses_divided(loss):
        raise ValueError(
            "A layer passes a loss to `add_loss` that it computes from the value of a "
            'keras.losses.Loss object, and aggregation="mean" would divide it by the number of '
            "replicas twice. Pass the value of the object itself, without further arithmetic (use "
            "its `sample_weight` for a weight), or compute the loss with a function, such as "
            f"keras.losses.mean_squared_error. Received: loss={loss.name!r} {see('TFA-313')}"
        )
    return original(self, loss)


def _divides():
    context = our_replica_context()
    return context is not None and marker_of(context.strategy) is None


def _graph_of(tensor):
    """Return the graph of a tensor; None for an eager tensor."""
    return getattr(tensor, "graph", None) if hasattr(tensor, "op") else None


def _uses_divided(loss):
    """Return whether a loss uses a value that was divided by the number of replicas."""
    graph = _graph_of(loss)
    divided = _divided.get(graph) if graph else None
    if not divided:
        return False
    others, ahead = _others.setdefault(graph, set()), [loss.op]
    while ahead:
        operation = ahead.pop()
        if operation.name in divided:
            return True
        if operation.name not in others:
            others.add(operation.name)
            ahead += [each.op for each in operation.inputs]
    return False
