"""Learning rate schedules for larger batches: the baselines that AdaScale is compared with."""

from typing import Any

import keras
import tensorflow as tf

from tf_adasum import arguments
from tf_adasum.compat import keras as keras_compat


@keras.saving.register_keras_serializable("tf_adasum")
class LinearScalingWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """Linear scaling with gradual warm-up: S times the learning rate, in 1/S of the iterations.

    Let ``lr`` be the schedule of a run with one batch per step, and T the number of its iterations.
    In the run that uses the new schedule, let S be the number of batches per step, n the number of
    iterations, and w the fraction of the iterations in which the learning rate warms up:

        η_t = lr(⌊t T / n⌋) · (1 + (S - 1) · min(t / (w n), 1))          t = 0, 1, …, n - 1

    η starts at ``lr(0)``, equals S times the schedule after iteration w n, and reaches the end of
    the schedule after n iterations. The AdaScale paper calls this LSW if n = ⌈T / S⌉, the default,
    and LSW+ if n is the number of iterations that AdaScale takes for the same T.

    Args:
        learning_rate: ``lr``: a float, or the `keras.optimizers.schedules.LearningRateSchedule` of
            the run with S = 1.
        scale: S, a number, 1 or more. In data-parallel training it is the number of replicas.
        total_steps: T, an int, the iterations of the run with S = 1.
        warmup: w, a float in [0, 1], the fraction of all iterations for the warm-up. With 0,
            training starts at S times the learning rate. Defaults to `5 / 90`.
        iterations: n, an int. Defaults to `None`: ⌈T / S⌉.

    Raises:
        ValueError: if a number is out of its range, or an argument has the wrong type.

    Example:
        >>> import tf_adasum
        >>> schedule = tf_adasum.schedules.LinearScalingWarmup(
        ...     0.1, scale=8, total_steps=9000, warmup=0.2
        ... )
        >>> schedule.iterations
        1125
        >>> [round(float(schedule(step)), 4) for step in (0, 45, 225, 1124)]
        [0.1, 0.24, 0.8, 0.8]

    Reference:
        Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour",
        arXiv 1706.02677, section 2.2 (warm-up in 5 of 90 epochs). LSW and LSW+ are compared with
        AdaScale by Johnson et al., ICML 2020 (arXiv 2007.05105), table 2.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        *,
        scale: float,
        total_steps: int,
        warmup: float = 5 / 90,
        iterations: int | None = None,
    ):
        is_schedule = isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule)
        if not is_schedule:
            expected = "must be a float, 0 or more, or a LearningRateSchedule"
            arguments.check_number("learning_rate", learning_rate, expected, at_least=0)
        expected = "must be a finite number of batches per step, 1 or more"
        arguments.check_number("scale", scale, expected, at_least=1)
        expected = "must be a fraction of all iterations, in [0, 1]"
        arguments.check_number("warmup", warmup, expected, at_least=0, at_most=1)
        expected = "must be a number of iterations, an int of 1 or more"
        arguments.check_count("total_steps", total_steps, expected)
        if iterations is not None:
            arguments.check_count("iterations", iterations, expected)
        self.learning_rate = learning_rate if is_schedule else float(learning_rate)
        self.scale = scale if isinstance(scale, int) else float(scale)
        self.total_steps = total_steps
        self.warmup = float(warmup)
        self._given_iterations = iterations

    @property
    def iterations(self) -> int:
        """n, the number of steps to train."""
        if self._given_iterations is not None:
            return self._given_iterations
        return int(-(-self.total_steps // self.scale))

    def __call__(self, step: Any) -> tf.Tensor:
        """Return the learning rate η of a step.

        Args:
            step: t, a scalar: a Python number, a tensor or a variable; read as int64.

        Returns:
            A scalar tensor in the dtype of the schedule; if `learning_rate` is a float, in Keras's
            default dtype.
        """
        t = tf.cast(step, tf.int64)
        learning_rate = self.learning_rate
        if not isinstance(learning_rate, float):
            # Computed in integers, because float32 is wrong if t T / n is close to an integer, or
            # if t T is above 2^24.
            learning_rate = learning_rate(t * self.total_steps // self.iterations)
        learning_rate = keras_compat.floating(learning_rate)
        return learning_rate * tf.cast(self._factor(t), learning_rate.dtype)

    def _factor(self, t: tf.Tensor) -> tf.Tensor:
        """Return the factor of the learning rate: from 1 to S, float64."""
        warmup_iterations = self.warmup * self.iterations
        if warmup_iterations == 0:
            return tf.constant(self.scale, tf.float64)
        progress = tf.minimum(tf.cast(t, tf.float64) / warmup_iterations, 1)
        return 1 + (self.scale - 1) * progress

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "learning_rate": keras.saving.serialize_keras_object(self.learning_rate),
            "scale": self.scale,
            "total_steps": self.total_steps,
            "warmup": self.warmup,
            "iterations": self._given_iterations,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LinearScalingWarmup":
        """Return a schedule from the config that `get_config` returned."""
        learning_rate = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(**config | {"learning_rate": learning_rate})
