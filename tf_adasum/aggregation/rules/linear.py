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

    `AdasumMirroredStrategy` weights the replicas by their numbers of rows n_i, so that the result
    is the gradient of the whole batch on one device, ``Σ_i n_i g_i / Σ_i n_i``.

    Example:
        >>> tf_adasum.rules.Mean().coefficients(tf.zeros([1, 4, 4], tf.float64)).numpy()
        array([[0.25, 0.25, 0.25, 0.25]])
    """

    needs_gram = False
    works_in_levels = True

    @property
    def is_mean(self) -> bool:
        """True, unless this is a subclass that computes other coefficients."""
        return self.computes_as(Mean)

    def coefficients(self, gram: tf.Tensor) -> tf.Tensor:
        """Return 1/R, shape ``[S, R]``; see `AggregationRule.coefficients`."""
        return tf.ones_like(gram[:, 0, :]) / gram.shape[-1]
