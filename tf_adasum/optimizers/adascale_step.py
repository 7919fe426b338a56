"""A step of `AdaScale`: sum the gradients, measure them, estimate the gain ratio, update."""

import tensorflow as tf

from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import gain

# The value that a replica without rows sends instead of a squared norm. Its gradients are zeros.
NOT_MEASURED = float("nan")


class AdaScaleStep(keras_compat.Step):
    """A step that estimates the gain ratio before the inner optimizer updates the weights.

    `build` creates the scalar variables that are listed as attributes.

    Args:
        optimizer: the inner optimizer.
        base_learning_rate: lr, as it was passed to the inner optimizer.
        smoothing: θ, or None for the default of `AdaScale`.
        debias: which form of moving average to use, as for `AdaScale`.

    Attributes:
        scale: S.
        gain, steps: r and τ.
        variance, squared_norm: the moving averages of σ² and μ².
        weight: the weight of the samples in the moving averages.
        skipped: the number of steps whose estimates were not finite.
    """

    def __init__(self, optimizer, base_learning_rate, smoothing, debias):
        super().__init__(optimizer)
        self.base_learning_rate = base_learning_rate
        self.smoothing, self.debias = smoothing, debias

    def build(self, wrapper, variables):
        """Create the accumulator of the measurements, and the state of the estimates."""
        self.add_accumulator()

        def state(name, initializer="zeros"):
            return wrapper.add_variable(
                (), initializer, dtype="float64", aggregation="only_first_replica", name=name
            )

        self.gain = state("gain", "ones")
        self.steps = state("scale_invariant_steps")
        self.variance = state("gradient_variance")
        self.squared_norm = state("gradient_squared_norm")
        self.weight = state("weight_of_samples")
        self.skipped = state("skipped_steps")
        # S is not saved as state, because a restart on another number of workers has another S.
        self.scale = tf.Variable(wrapper.scale, dtype=tf.float64, trainable=False)

    @property
    def count(self):
        """C, the number of gradients that are measured in a step."""
        return self.replicas * keras_compat.accumulation_steps(self.optimizer)

    def measure(self, gradients):
        """Return a list of ‖g_i‖², which the replicas reduce with their gradients g_i.

        Other strategies than ours sum, and Keras passes g_i/N for N replicas. The sum of N‖g_i/N‖²
        is the mean of ‖g_i‖². The list is empty if a step has only one gradient.
        """
        if self.count == 1:
            return []
        measured = tf.cast(gain.squared_norm(gradients), tf.float32)
        strategy = _our_strategy()
        if not strategy:
            return [self.replicas * measured]
        is_empty = strategy._empty_replicas.is_empty
        return [measured if is_empty is None else tf.where(is_empty, NOT_MEASURED, measured)]

    def update(self, values, variables):
        """Combine the replicas' values, estimate r, and take a step with η = r · lr(⌊τ⌋)."""
        gradients, measured = values[: len(variables)], values[len(variables) :]
        gradients, measured = self._combined(gradients, measured, variables)
        pairs = zip(gradients, variables, strict=True)
        gradients = [keras_compat.of_known_shape(*pair) for pair in pairs]
        advance = 1.0
        if measured:
            advance = self.estimate(measured[0], gain.squared_norm(gradients))
        super().update(gradients, variables)
        self.steps.assign_add(advance)

    def _combined(self, gradients, measured, variables):
        """Return the gradients and measured scalars of all replicas, in one reduction if possible.

        A bucket has one dtype.
        """
        context = tf.distribute.get_replica_context()
        if not _our_strategy():
            sums = context.all_reduce("SUM", [*gradients, *measured])
            return sums[: len(gradients)], sums[len(gradients) :]
        if {gradient.dtype for gradient in gradients} == {tf.float64}:
            measured = [tf.cast(scalar, tf.float64) for scalar in measured]
        values = keras_compat.combine(self.optimizer, gradients, variables, measured)
        return values[: len(gradients)], values[len(gradients) :]

    def estimate(self, mean_square, square_of_mean):
        """Add the sample of a step to the averages and set r; return the increase of τ.

        Args:
            mean_square: (1/C) Σ‖g_i‖², or NaN if a replica has no rows.
            square_of_mean: ‖ḡ‖².
        """
        scale = tf.convert_to_tensor(self.scale)
        sample = gain.estimates(tf.cast(mean_square, tf.float64), square_of_mean, self.count, scale)
        is_finite = tf.math.is_finite(sample[0] + sample[1])
        is_left_out = tf.math.is_finite(square_of_mean) & tf.math.is_nan(mean_square)
        goes_on = is_finite | is_left_out
        smoothing = tf.maximum(1 - scale / 1000, 0) if self.smoothing is None else self.smoothing
        weight, rate = gain.averaging(tf.convert_to_tensor(self.weight), smoothing, self.debias)

        def assign_if_finite(variable, value):
            variable.assign(tf.where(is_finite, value, tf.convert_to_tensor(variable)))

        for average, value in zip((self.variance, self.squared_norm), sample, strict=True):
            assign_if_finite(average, average + rate * (value - average))
        assign_if_finite(self.weight, weight)
        assign_if_finite(self.gain, gain.gain_ratio(self.variance, self.squared_norm, scale))
        self.skipped.assign_add(tf.cast(tf.logical_not(goes_on), tf.float64))
        return tf.where(goes_on, tf.convert_to_tensor(self.gain), 0.0)


def _our_strategy():
    """Return the current strategy if it is one of ours, or else None."""
    strategy = tf.distribute.get_strategy()
    return strategy if keras_compat.is_ours(strategy) else None
