"""Sum and mean: the rules whose coefficients do not depend on the gradients.

Shape legend: S segments, R replicas.
"""

import keras
import tensorflow as tf

from tf_adasum.aggregation.rules.base import AggregationRule


@keras.saving.register_keras_serializable("tf_adasum")
class Sum(AggregationRule):
    """``Σ_i g_i``: every coefficient is 1. Too aggressive where the gradients agree."""

    needs_gram = False
    works_in_levels = True

    def coefficients(self, gram):
        """Returns ones, shape ``[S, R]``; see `AggregationRule.coefficients`."""
        return tf.ones_like(gram[:, 0, :])


@keras.saving.register_keras_serializable("tf_adasum")
class Mean(AggregationRule):
    """``(1/R) Σ_i g_i``: what every data-parallel framework does by default.

    Under `AdasumMirroredStrategy` this rule is TensorFlow's and Keras's stock path: Keras divides
    mean-type losses by the number of replicas and TensorFlow sums the gradients.
    """

    needs_gram = False
    works_in_levels = True

    def coefficients(self, gram):
        """Returns 1/R, shape ``[S, R]``; see `AggregationRule.coefficients`."""
        return tf.ones_like(gram[:, 0, :]) / gram.shape[-1]
