"""Sum and mean: the rules whose coefficients do not depend on the gradients.

Shape legend: S segments, R replicas.
"""

import keras
import tensorflow as tf

from tf_adasum.aggregation.rules.base import AggregationRule


@keras.saving.register_keras_serializable("tf_adasum")
class Sum(AggregationRule):
    """``Σ_i g_i``: every coefficient is 1. The step is too large if the gradients agree.

    Example:
        >>> tf_adasum.rules.Sum().coefficients(tf.zeros([1, 3, 3], tf.float64)).numpy()
        array([[1., 1., 1.]])
    """

    needs_gram = False
    works_in_levels = True

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return ones, shape ``[S, R]``; see `AggregationRule.coefficients`."""
        return tf.ones_like(gram[:, 0, :])


@keras.saving.register_keras_serializable("tf_adasum")
class Mean(AggregationRule):
    """``(1/R) Σ_i g_i``: the default of every data-parallel framework.

    With this rule, `AdasumMirroredStrategy` averages like TensorFlow's own strategies: Keras
    divides mean-type losses by the number of replicas, and TensorFlow sums the gradients. If
    gradients are sent over UCX, this package sums the gradients of a Keras optimizer instead.

    Example:
        >>> tf_adasum.rules.Mean().coefficients(tf.zeros([1, 4, 4], tf.float64)).numpy()
        array([[0.25, 0.25, 0.25, 0.25]])
    """

    needs_gram = False
    works_in_levels = True

    @property
    def is_stock_mean(self) -> bool:
        """True, except for subclasses: TensorFlow sums, and Keras divides the losses by R."""
        return type(self) is Mean

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return 1/R, shape ``[S, R]``; see `AggregationRule.coefficients`."""
        return tf.ones_like(gram[:, 0, :]) / gram.shape[-1]
