"""LAMB where TensorFlow Addons has it: with TensorFlow 2.15."""

import keras
import tensorflow_addons as tfa


@keras.saving.register_keras_serializable("tf_adasum")
class LAMB(tfa.optimizers.LAMB):
    """`tensorflow_addons.optimizers.LAMB`, with the arguments of LAMB in the main lane.

    The steps are those of `tf_adasum.optimizers.lamb.LAMB`, to float32 rounding. Addons takes
    ``epsilon=0`` for 1e-7, and an empty `exclude_from_layer_adaptation` for the exclusions from
    weight decay.

    Args:
        learning_rate: η: a float or a `tf.keras.optimizers.schedules.LearningRateSchedule`.
        beta_1: β1, in [0, 1).
        beta_2: β2, in [0, 1).
        epsilon: ε, above 0.
        weight_decay: λ, 0 or more.
        exclude_from_weight_decay: regular expression or list of them, searched in the variable's
            name, which ends in ``":0"``; None, none.
        exclude_from_layer_adaptation: the same; None, the ones of `exclude_from_weight_decay`.
        name: name of the optimizer.
        kwargs: `clipnorm`, `clipvalue`, `global_clipnorm`, of legacy optimizers.
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
        super().__init__(
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            exclude_from_weight_decay=_as_list(exclude_from_weight_decay),
            exclude_from_layer_adaptation=_as_list(exclude_from_layer_adaptation),
            name=name,
            **kwargs,
        )

    def get_config(self):
        """Returns the constructor's arguments; Addons leaves the exclusions out."""
        return super().get_config() | {
            "exclude_from_weight_decay": self.exclude_from_weight_decay,
            "exclude_from_layer_adaptation": self.exclude_from_layer_adaptation,
        }


def _as_list(patterns):
    return [patterns] if isinstance(patterns, str) else patterns
