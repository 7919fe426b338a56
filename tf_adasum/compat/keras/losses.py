"""A hook into losses, and the losses of all replicas (Keras 2 and 3).

The loss of a replica is the mean over its own rows. The rule mean weights the replicas' gradients
by their rows; Adasum and other rules do not. Sums, and means with weights or masks, are multiplied
by a factor, so that their weighted mean over the replicas is the loss of the whole batch. Under
other rules than mean, the factor changes the reported loss alone, and not its gradient.
"""

import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.generation import hooks, private_names
from tf_adasum.compat.keras.optimizers import is_ours, our_replica_context
from tf_adasum.compat.thread_flag import ThreadFlag
from tf_adasum.errors import see


@hooks.replaces(private_names.losses, *private_names.SCALING_OF_LOSSES)
def scale_loss_for_distribution(original, value, /):
    """Do not divide losses by the number of replicas, because the rule needs undivided gradients.

    Keras divides losses that are means over rows, because it later sums the replicas' gradients.
    The division would also change the effect of gradient clipping. Keras does not divide losses
    that are already scalars, so the weights of several losses would change.
    """
    return value if is_ours(tf.distribute.get_strategy()) else original(value)


def of_all_replicas(loss, divisor=None):
    """Return a loss of the rows of all replicas, which each replica computes from its own rows.

    Args:
        loss: the sum over this replica's rows, or this sum divided by `divisor`.
        divisor: scalar that the sum was divided by, such as the sum of the weights. Defaults to
            None: the sum was not divided.

    Returns:
        A loss whose mean over all rows of all replicas is the loss of the whole batch. With the
        rule mean, this holds for its gradient too. With other rules, the gradient is that of
        `loss`.
    """
    factor = factor_of_loss(divisor)
    if factor is None:
        return loss
    scaled = loss * tf.cast(factor, loss.dtype)
    return scaled if _is_mean() else loss + tf.stop_gradient(scaled - loss)


class NeedsReplicas(RuntimeError):
    """A loss that XLA compiles needs a number of the other replicas."""


class NeedsRows(NeedsReplicas):
    """A loss that XLA compiles needs the number of rows of all replicas."""


# A context manager in which losses raise `NeedsReplicas` if XLA cannot compile them.
_compiles = ThreadFlag()
compiling = _compiles.within


def factor_of_loss(divisor=None):
    """Return the factor of `of_all_replicas`; None outside of our replicas, or with one replica."""
    context = our_replica_context()
    step = context and context.strategy._virtual_replicas.step
    replicas = context.num_replicas_in_sync if context else 1
    if replicas == 1 and not step:
        return None
    can_reduce = tensorflow_compat.can_reduce()  # not within a function or a loop of a user's step
    if divisor is not None and (step or not can_reduce):
        if _is_mean() and step:
            raise ValueError(
                "A loss of masked or weighted rows needs the weights of all virtual replicas "
                "under the rule 'mean', but they run one after the other. Use another rule, the "
                "reduction 'sum', or train without `virtual_replicas`. " + see("TFA-316")
            )
        if _is_mean() and _compiles.value:
            raise NeedsReplicas
        return None
    weight, factor = weight_of_replica(), float(replicas)
    if weight is not None:
        factor = tf.math.divide_no_nan(factor, weight)
    if divisor is None:
        return factor
    divisor = tf.stop_gradient(tf.cast(divisor, tf.float32))
    return factor * tf.math.divide_no_nan(divisor, context.all_reduce("SUM", divisor))


def weight_of_replica():
    """Return ``n_i N / Σ n_i`` of a replica; None if all have as many rows, or it is not known."""
    rows = tf.distribute.get_strategy()._empty_replicas
    if tensorflow_compat.can_reduce() or rows.has_total:
        return rows.weight()
    if _compiles.value and _is_mean():
        raise NeedsRows
    return None


def sum_of_all_replicas(losses):
    """Return a vector of losses whose gradient under the rule mean is that of the global sum."""
    factor = factor_of_loss() if _is_mean() else None
    return losses if factor is None else with_gradient_times(losses, factor)


@tensorflow_compat.hooks.replaces(tf.nn, "compute_average_loss", "scale_regularization_loss")
def loss_divided_by_replicas(original, *args, **kwargs):
    """Undo the division by the number of replicas in the gradient, as for Keras's losses.

    The value stays divided, because custom training loops sum it over the replicas.
    """
    loss = original(*args, **kwargs)
    context = our_replica_context()
    step = context and context.strategy._virtual_replicas.step
    if not context or (context.num_replicas_in_sync == 1 and not step):
        return loss
    factor = float(context.num_replicas_in_sync)
    if step and original.__name__ == "compute_average_loss" and _given_size(*args, **kwargs):
        factor = float(context.strategy.num_virtual_replicas)
    if _is_mean() and original.__name__ == "compute_average_loss":
        factor = factor_of_loss()
    return with_gradient_times(loss, factor)


def _given_size(per_example_loss, sample_weight=None, global_batch_size=None):
    return global_batch_size is not None


def _is_mean():
    return tf.distribute.get_strategy().aggregation.is_mean


@tf.custom_gradient
def with_gradient_times(value, factor):
    """Return the same value, whose gradient is multiplied by a factor."""
    return tf.identity(value), lambda upstream: (upstream * tf.cast(factor, upstream.dtype), None)
