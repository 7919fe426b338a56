"""AdaScale: adapt the learning rate to a larger batch, with measurements in every step."""

import functools
import warnings

import keras
import tensorflow as tf

from tf_adasum.arguments import check_number
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import see
from tf_adasum.optimizers.adascale_step import AdaScaleStep
from tf_adasum.optimizers.wrapper import WrapperOptimizer, check_optimizer
from tf_adasum.schedules import LinearScalingWarmup

VALIDATED = (keras.optimizers.SGD,)


@keras.saving.register_keras_serializable("tf_adasum")
class AdaScale(WrapperOptimizer):
    """Adapts the learning rate of an optimizer to batches S times as large as it was tuned for.

    In step t, let g_i be the gradients of the S *small batches* and ḡ their mean:

        η_t = r_t · lr(⌊τ_t⌋)       r_t = (σ² + μ²) / (σ²/S + μ²)  in [1, S]
        w ← step of the optimizer with ḡ and η_t
        τ_{t+1} = τ_t + r_t

    r is the *gain ratio*: 1 if the gradients agree, S if they are only noise. τ, the
    *scale-invariant step*, counts steps on small batches. Keep the schedule of the small batch and
    its number of steps T: train until τ ≥ T, with `callbacks.StopAtScaleInvariantStep`. Details:
    docs/adascale.md.

    Args:
        optimizer: `keras.optimizers.SGD` for S = 1; other optimizers cause a warning.
        scale: float, S, 1 or more. Defaults to replicas x accumulation steps.
        smoothing: float, θ in [0, 1): the weight of the earlier steps in the moving averages.
            Defaults to `max(1 - S/1000, 0)`.
        debias: bool; False for the averages of the paper's appendix B.3. Defaults to `True`.
        name: str, name of the optimizer. Defaults to `"adascale"`.

    Raises:
        ValueError: if an argument is wrong, if the strategy does not average, or if a step has only
            one gradient and `scale` is above 1.

    Example:
        Two orthogonal gradients are only noise: a step with their mean counts as two.

        >>> import keras
        >>> import numpy as np
        >>> import tf_adasum
        >>> sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        >>> optimizer = tf_adasum.optimizers.AdaScale(sgd)
        >>> w = keras.Variable([1.0, 1.0])
        >>> optimizer.apply([np.array([1, 0], "float32")], [w])
        >>> optimizer.apply([np.array([0, 1], "float32")], [w])
        >>> float(optimizer.gain), [round(float(element), 4) for element in w.numpy()]
        (2.0, [0.9, 0.9])

    Reference:
        Johnson et al., "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", ICML
        2020 (arXiv 2007.05105), Algorithm 2.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        *,
        scale: float | None = None,
        smoothing: float | None = None,
        debias: bool = True,
        name: str = "adascale",
    ):
        check_optimizer("AdaScale", optimizer)
        if scale is not None:
            check_scale(scale)
        if smoothing is not None:
            expected = "must be in [0, 1): 0 uses only the last step, 0.9 about ten steps"
            check_number("smoothing", smoothing, expected, at_least=0, below=1)
        self.check_strategy(tf.distribute.get_strategy())
        if not isinstance(optimizer, VALIDATED):
            _warn_of_experiment(type(optimizer).__name__)
        super().__init__(optimizer, name)
        self.smoothing, self.debias = smoothing, bool(debias)
        self._given_scale = scale
        base = keras_compat.swap_learning_rate(optimizer, ScaledLearningRate(self))
        if isinstance(base, LinearScalingWarmup):
            keras_compat.swap_learning_rate(optimizer, base)  # restores the optimizer
            raise ValueError(
                "AdaScale already scales the learning rate. Give the optimizer the learning rate "
                "or schedule of one device, without LinearScalingWarmup. Received: "
                "learning_rate=LinearScalingWarmup(…)"
            )
        self.set_step(AdaScaleStep(optimizer, base, smoothing, self.debias))

    @property
    def scale(self) -> float:
        """S, the number of small batches in a step, as a float."""
        return float(self._step.count if self._given_scale is None else self._given_scale)

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Raise a ValueError for an `AdasumMirroredStrategy` with another rule than the mean."""
        if keras_compat.is_ours(strategy) and not strategy.aggregation.is_mean:
            raise ValueError(
                "AdaScale estimates the noise of the *mean* gradient, but this strategy does not "
                "average gradients. Use AdasumMirroredStrategy(aggregation='mean'), or remove "
                "AdaScale: Adasum already adapts to the batch size. Received: "
                f"{strategy.aggregation!r} {see('TFA-307')}"
            )

    def check(self) -> None:
        """Raise a ValueError if `scale` is above 1, but a step has only one gradient.

        Also raise it if an optimizer that holds several holds this one, which then gets only a part
        of the gradient.
        """
        if keras_compat.is_one_of_several(self):
            raise ValueError(
                "AdaScale measures the gradient of all variables, so it cannot be one of several "
                "optimizers. Compile the model with one AdaScale, or use optimizers without "
                f"AdaScale for different variables. Received: {self.name!r} in a MultiOptimizer"
            )
        self._check_measurable(self.scale)

    @property
    def settings(self) -> str:
        """The settings that must match on all workers, as a str."""
        return f"scale={self.scale}, smoothing={self.smoothing}, debias={self.debias}"

    def _check_measurable(self, scale):
        if scale > 1 and self._step.count == 1:
            raise ValueError(
                "AdaScale measures how the gradients of a step differ, but each step has only one "
                "gradient. Train on several replicas, or pass gradient_accumulation_steps to the "
                f"inner optimizer. Received: scale={scale}, 1 replica, no accumulation "
                f"{see('TFA-308')}"
            )

    def set_scale(self, scale: float) -> None:
        """Set S between two steps, on all workers, when the batch size changes.

        Args:
            scale: float, S, 1 or more.
        """
        check_scale(scale)
        if self.built:
            self._check_measurable(scale)
        self._given_scale = scale
        if self.built:
            self.check_same_settings()
            self._step.scale.assign(scale)

    @property
    def gain(self) -> tf.Tensor:
        """r, the gain ratio of the last step, in [1, S]: float64 scalar tensor; 1 at the start."""
        return self._state("gain", 1.0)

    @property
    def scale_invariant_steps(self) -> tf.Tensor:
        """τ, the sum of the gains so far: float64 scalar tensor."""
        return self._state("steps")

    @property
    def gradient_variance(self) -> tf.Tensor:
        """The average σ², the variance of a small batch's gradient: float64 scalar tensor."""
        return self._state("variance")

    @property
    def gradient_squared_norm(self) -> tf.Tensor:
        """The average μ², the squared norm of the mean gradient: float64 scalar tensor."""
        return self._state("squared_norm")

    @property
    def skipped_steps(self) -> tf.Tensor:
        """The number of steps with a gradient that was not finite: float64 scalar tensor."""
        return self._state("skipped")

    def _state(self, name, initially=0.0):
        if not self.built:
            return tf.constant(initially, tf.float64)
        return tf.convert_to_tensor(getattr(self._step, name))

    @property
    def learning_rate(self):
        """lr(⌊τ⌋), the learning rate for S = 1. Can be set, as in Keras."""
        base = self._step.base_learning_rate
        if isinstance(base, keras_compat.VARIABLE_TYPES):
            return base
        if isinstance(base, keras.optimizers.schedules.LearningRateSchedule):
            return base(tf.cast(tf.floor(self.scale_invariant_steps), tf.int64))
        return base()

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        base = self._step.base_learning_rate
        if callable(learning_rate) and not isinstance(learning_rate, keras_compat.VARIABLE_TYPES):
            self._step.base_learning_rate = learning_rate
        elif isinstance(base, keras_compat.VARIABLE_TYPES):
            base.assign(learning_rate)
        else:
            raise TypeError(
                "The learning rate cannot be set to a number, because the inner optimizer was "
                "created with a schedule. Set it to another schedule. "
                f"Received: learning_rate={learning_rate!r}"
            )

    @property
    def effective_learning_rate(self) -> tf.Tensor:
        """η = r · lr(⌊τ⌋) with the gain ratio r of the last step: scalar tensor."""
        base = keras_compat.floating(self.learning_rate)
        return tf.cast(self.gain, base.dtype) * base

    def get_config(self) -> dict:
        """Return the constructor's arguments; the inner optimizer's learning rate is not scaled."""
        inner = self.inner_optimizer
        scaled = keras_compat.swap_learning_rate(inner, self._step.base_learning_rate)
        try:
            serialized = keras.saving.serialize_keras_object(inner)
        finally:
            keras_compat.swap_learning_rate(inner, scaled)
        return {
            "optimizer": serialized,
            "scale": self._given_scale,
            "smoothing": self.smoothing,
            "debias": self.debias,
            "name": self.name,
        }


@keras.saving.register_keras_serializable("tf_adasum")
class ScaledLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of the inner optimizer, η = r · lr(⌊τ⌋), which ignores the iteration.

    Args:
        adascale: the `AdaScale`.
    """

    def __init__(self, adascale):
        self._adascale = adascale

    def __call__(self, step):
        """Return η; the iteration does not matter."""
        return self._adascale.effective_learning_rate

    def get_config(self):
        """Return an empty config, because `AdaScale.get_config` contains the learning rate."""
        return {}


def find_adascale(optimizer: keras.optimizers.Optimizer | None, asker: str) -> AdaScale:
    """Return the `AdaScale` in an optimizer: the optimizer itself, or an optimizer inside it.

    Args:
        optimizer: `keras.optimizers.Optimizer` of a model, or None.
        asker: str, the name of the callback that needs the `AdaScale`, for the error message.

    Raises:
        ValueError: if there is no `AdaScale`.
    """
    for each in keras_compat.optimizers_within(optimizer):
        if isinstance(each, AdaScale):
            return each
    raise ValueError(
        f"{asker} needs a model compiled with tf_adasum.optimizers.AdaScale(optimizer). "
        f"Received: optimizer={optimizer!r}"
    )


def check_scale(scale: float) -> None:
    """Raise a ValueError unless `scale` is a number of 1 or more."""
    expected = "must be the number of small batches in a step, 1 or more"
    check_number("scale", scale, expected, at_least=1)


@functools.cache  # once for each class
def _warn_of_experiment(name):
    warnings.warn(
        f"AdaScale around {name} is an experiment. AdaScale was designed for SGD and tested with "
        "SGD, with and without momentum (Johnson et al., ICML 2020, Table 2). "
        f"{see('TFA-311')}",
        stacklevel=3,
    )
