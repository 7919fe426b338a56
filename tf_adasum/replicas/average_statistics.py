"""Averages the statistics that each replica computes from its own rows.

If a BatchNormalization is not synchronized, each replica updates the mean and the variance from its
own batches. So replicas have different values, and a model that is saved or evaluated should not
use the values of only one replica.
"""

import math
import weakref

import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.replicas.equal_variables import is_shared

# For each model: the ids of the averaged variables, and the traced function that averages them.
_averages: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def average(strategy, model):
    """Average the floating-point weights of a model that each replica updates separately.

    Frozen weights are not averaged. They should be the same on all replicas; if they differ,
    averaging would hide the error. The average is computed in float64, so that equal weights keep
    their bits; float64 weights may change by one rounding. If a replica has no rows in a step, the
    mean of its batch is NaN. So values that are not finite are left out of the average. If a value
    is finite on no replica, it is not changed.

    Args:
        strategy: the strategy; all its workers have to call this function.
        model: a built `keras.Model`.
    """
    variables = [v for v in model.non_trainable_variables if _is_floating(v) and not is_shared(v)]
    if not variables:
        return
    known, averaged = _averages.get(model, (None, None))
    if known != [id(variable) for variable in variables]:
        averaged = _averaging(strategy, variables)
        _averages[model] = [id(variable) for variable in variables], averaged
    averaged()


def _is_floating(variable):
    return tf.as_dtype(variable.dtype).is_floating


def _averaging(strategy, variables):
    def in_replica():
        own = tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in variables], axis=0)
        is_finite = tf.math.is_finite(own)
        counted = tf.stack([tf.where(is_finite, own, 0), tf.cast(is_finite, tf.float64)])
        total, count = tf.unstack(tf.distribute.get_replica_context().all_reduce("SUM", counted))
        means = tf.where(count > 0, total / count, own)
        means = tf.split(means, [math.prod(v.shape) for v in variables])
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(tf.reshape(tf.cast(mean, variable.dtype), variable.shape))

    return tensorflow_compat.function_without_retrace_warning(lambda: strategy.run(in_replica))
