"""Compiles forward and backward passes of replicas with XLA, for `compile(jit_compile=True)`.

    rows ─▶ [ forward pass ─▶ loss ─▶ backward pass ] ─▶ aggregation ─▶ update ─▶ metrics
              compiled, for each local replica              as without XLA

Keras lets XLA compile a whole step. But TensorFlow's collectives have no XLA kernels, so XLA
compiles only the passes, and the rest of the step runs without XLA. `predict` has no collectives,
so Keras compiles its whole step.
"""

import warnings

import keras
import tensorflow as tf

from tf_adasum.compat.keras.losses import NeedsReplicas, NeedsRows, compiling
from tf_adasum.compat.keras.private_names_keras3 import (
    XLA,
    Trainer,
    get_keras_mask,
    library,
    losses,
    set_keras_mask,
)
from tf_adasum.errors import see


def compiled_where_possible(model, step):
    """Return a step whose passes XLA compiles. If this is impossible, warn and return `step`.

    Args:
        model: the model.
        step: the model's `train_step` or `test_step`, which gets a replica's part of a batch.
    """
    if XLA in library.off:
        _warn(model, step, f"this {library.title} has no {', '.join(library.off[XLA])}")
        return step
    make = {Trainer.train_step: _train_step, Trainer.test_step: _test_step}
    function = getattr(step, "__func__", None)
    if function not in make:
        _warn(model, step, "it is the model's own step, whose passes cannot be compiled alone")
        return step
    return make[function](model, _compiler(model, step))


def _train_step(model, compiled):
    """Return Keras's `train_step` in two parts: the compiled passes, and the rest."""

    def train_step(data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        weights = model.trainable_weights

        def forward_and_backward():
            with tf.GradientTape() as tape:
                outputs, loss = _forward(model, x, y, sample_weight, training=True)
                scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
            return outputs, loss, tape.gradient(scaled, weights)

        outputs, loss, gradients = compiled(forward_and_backward)
        _track(model, loss, x)
        if weights:
            model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return model.compute_metrics(x, y, _with_masks(*outputs), sample_weight=sample_weight)

    return train_step


def _test_step(model, compiled):
    """Return Keras's `test_step` in two parts: the forward pass, and the metrics."""

    def test_step(data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs, loss = compiled(lambda: _forward(model, x, y, sample_weight, training=False))
        _track(model, loss, x)
        return model.compute_metrics(x, y, _with_masks(*outputs), sample_weight=sample_weight)

    return test_step


def _forward(model, x, y, sample_weight, training):
    """Return the outputs with their masks, and the loss.

    Metrics need the masks. A mask is an attribute of a tensor, and a compiled function does not
    return attributes. So the masks are returned separately.
    """
    y_pred = model(x, training=training) if model._call_has_training_arg else model(x)
    loss = model._compute_loss(
        x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
    )
    return (y_pred, keras.tree.map_structure(get_keras_mask, y_pred)), loss


def _with_masks(y_pred, masks):
    pairs = zip(keras.tree.flatten(y_pred), keras.tree.flatten(masks), strict=True)
    for output, mask in pairs:
        if mask is not None:
            set_keras_mask(output, mask)
    return y_pred


def _track(model, loss, x):
    rows = tf.shape(next(each for each in keras.tree.flatten(x) if each is not None))[0]
    model._loss_tracker.update_state(losses.unscale_loss_for_distribution(loss), sample_weight=rows)


def _compiler(model, step):
    """Return a function that compiles functions with XLA and calls them in a replica.

    It stops compiling if a function needs a collective. A compiled function belongs to one replica
    and one trace, because it uses variables of the replica and tensors of the traced graph. The
    next trace compiles the function again.

    Args:
        model: the model.
        step: the step that contains these functions as passes.
    """
    is_possible = True

    def compiled(function):
        nonlocal is_possible
        if is_possible:
            try:
                with compiling():
                    return tf.function(function, jit_compile=True, autograph=False)()
            except NeedsRows:  # the replicas exchange them before the passes
                model.distribute_strategy._empty_replicas.total_rows()
                return compiled(function)
            except NeedsReplicas:
                pass
            except RuntimeError as error:
                if "merge_call" not in str(error):  # the call that begins a collective
                    raise
            is_possible = False
            reason = (
                "the passes reduce over the replicas, as a synchronized BatchNormalization does, "
                "or a loss of masked rows under the rule mean"
            )
            _warn(model, step, reason)
        return function()

    return compiled


def _warn(model, step, reason):
    warnings.warn(
        f"AdasumMirroredStrategy runs the {step.__name__} of {model.name!r} without XLA, because "
        f"{reason}. TensorFlow's collectives have no XLA kernels. Compile the model with "
        f"jit_compile=False to silence this warning. {see('TFA-304')}",
        stacklevel=3,
    )
