"""Averages the statistics that each replica computes from its own rows.

If a BatchNormalization is not synchronized, each replica updates the mean and the variance from its
own batches. So replicas have different values, and a model that is saved or evaluated should not
use the values of only one replica.
"""

import weakref

import tensorflow as tf

from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.replicas.equal_variables import is_shared

# For each model: the ids of the averaged variables, and the traced function that averages them.
_averages: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def average(strategy, model):
    """Average the floating-point weights of a model that each replica updates separately.

    Frozen weights are not averaged. They should be the same on all replicas; if they differ,
    averaging would hide the error.

    Args:
        strategy: the strategy; all its workers have to call this function.
        model: a built `keras.Model`.
    """
    variables = [
        variable
        for variable in model.non_trainable_variables
        if tf.as_dtype(variable.dtype).is_floating and not is_shared(variable)
    ]
    if not variables:
        return
    known, averaged = _averages.get(model, (None, None))
    if known != [id(variable) for variable in variables]:
        averaged = tensorflow_compat.function_without_retrace_warning(
            lambda: strategy.run(lambda: keras_compat.average(variables))
        )
        _averages[model] = [id(variable) for variable in variables], averaged
    averaged()
