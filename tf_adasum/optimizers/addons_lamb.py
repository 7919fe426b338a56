"""LAMB of TensorFlow Addons, for TensorFlow 2.15."""

import keras
import tensorflow as tf
import tensorflow_addons as tfa

from tf_adasum.arguments import check_number
from tf_adasum.optimizers.lamb_arguments import check_numbers, patterns


@keras.saving.register_keras_serializable("tf_adasum")
class LAMB(tfa.optimizers.LAMB):
    """`tensorflow_addons.optimizers.LAMB`, with the arguments of LAMB for Keras 3.

    LAMB for Keras 3, `tf_adasum.optimizers.lamb.LAMB`, takes the same steps, up to float32
    rounding. In Addons, an empty `exclude_from_layer_adaptation` means the same as None.

    Args:
        learning_rate: float or `tf.keras.optimizers.schedules.LearningRateSchedule`, η. Defaults to
            `0.001`.
        beta_1: float, β1, in [0, 1). Defaults to `0.9`.
        beta_2: float, β2, in [0, 1). Defaults to `0.999`.
        epsilon: float, ε, above 0. Defaults to `1e-6`.
        weight_decay: float, λ, 0 or more. Defaults to `0.0`.
        exclude_from_weight_decay: str, a regular expression, or list of str. It is searched in the
            variable's name, which ends in ``":0"``. Defaults to `None`, which excludes nothing.
        exclude_from_layer_adaptation: str or list of str, searched in the same names. Defaults to
            `None`, which uses the patterns of `exclude_from_weight_decay`.
        name: str, name of the optimizer. Defaults to `"lamb"`.
        kwargs: `clipnorm`, `clipvalue` or `global_clipnorm`, as in legacy Keras optimizers.

    Raises:
        ValueError: if an argument is not a number in its range, or a pattern is not a valid regular
            expression.
        TypeError: for other arguments.
    """

    def __init__(
        self,
        learning_rate=0.001,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.0,
        exclude_from_weight_decay=None,
        exclude_from_layer_adaptation=None,
        name="lamb",
        **kwargs,
    ):
        if not callable(learning_rate) and not tf.is_tensor(learning_rate):
            expected = "of LAMB must be a number, 0 or more, or a LearningRateSchedule"
            check_number("learning_rate", learning_rate, expected, at_least=0)
        check_numbers(beta_1, beta_2, epsilon, weight_decay)
        check_number("epsilon", epsilon, "of TensorFlow Addons' LAMB must be above 0", above=0)
        no_decay = patterns("exclude_from_weight_decay", exclude_from_weight_decay)
        no_adaptation = patterns("exclude_from_layer_adaptation", exclude_from_layer_adaptation)
        super().__init__(
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            exclude_from_weight_decay=_as_list(no_decay),
            exclude_from_layer_adaptation=_as_list(no_adaptation),
            name=name,
            **kwargs,
        )

    def get_config(self):
        """Return the constructor's arguments, including the exclusions, which Addons omits."""
        return super().get_config() | {
            "exclude_from_weight_decay": self.exclude_from_weight_decay,
            "exclude_from_layer_adaptation": self.exclude_from_layer_adaptation,
        }


def _as_list(patterns):
    return None if patterns is None else list(patterns)
