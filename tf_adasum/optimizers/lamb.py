"""LAMB: Adam whose step for each variable has a norm proportional to the variable's norm."""

import re
import warnings
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat.keras.keras3.wrapper import SelfDecayingOptimizer
from tf_adasum.errors import see
from tf_adasum.optimizers.lamb_arguments import check_numbers, patterns


@keras.saving.register_keras_serializable("tf_adasum")
class LAMB(SelfDecayingOptimizer):
    """Optimizer for large batches, with layer-wise adaptive moments.

    In step t = 1, 2, …, for each variable w with gradient g:

        m ← β1 m + (1 - β1) g                   v ← β2 v + (1 - β2) g²
        m̂ = m / (1 - β1^t)                      v̂ = v / (1 - β2^t)
        u = m̂ / (sqrt(v̂) + ε) + λ w             weight decay, inside the trust ratio
        w ← w - η φ u                           φ = ‖w‖ / ‖u‖, or 1 if one of them is 0

    Variables that match `exclude_from_weight_decay` use λ = 0; variables that match
    `exclude_from_layer_adaptation` use φ = 1. A pattern is a regular expression that is searched in
    the variable's `path`, such as ``"dense/bias"``. If a pattern matches no variable, the optimizer
    warns when it is built.

    m, v and all norms are float32, or float64 for float64 variables. Sparse gradients are treated
    as dense gradients: every row takes part in each step.

    *keras.optimizers.Lamb* differs: it adapts every variable, its default ε is 1e-7, and it
    computes w ← (1 - η λ) w before the step, so that the trust ratio does not include weight decay.

    *tensorflow_addons.optimizers.LAMB* 0.23 takes the same steps, up to float32 rounding, except
    for two settings. With ``epsilon=0``, Addons uses 1e-7, and this class uses 0. An empty
    `exclude_from_layer_adaptation` means the default in Addons, and excludes nothing in this class.
    Addons searches patterns in names that end in ``":0"``; this class searches in paths, which have
    no such ending.

    Args:
        learning_rate: η: float, `keras.optimizers.schedules.LearningRateSchedule`, or callable
            without arguments. Defaults to `0.001`.
        beta_1: float, β1, in [0, 1). Defaults to `0.9`.
        beta_2: float, β2, in [0, 1). Defaults to `0.999`.
        epsilon: float, ε, 0 or more. With 0, u is only λ w for an element whose gradients have all
            been 0. Defaults to `1e-6`.
        weight_decay: float, λ, 0 or more. Defaults to `0.0`.
        exclude_from_weight_decay: str, a regular expression, or list of str. Defaults to `None`,
            which excludes nothing.
        exclude_from_layer_adaptation: str, a regular expression, or list of str. Defaults to
            `None`, which uses the patterns of `exclude_from_weight_decay`.
        clipnorm, clipvalue, global_clipnorm, use_ema, ema_momentum, ema_overwrite_frequency: as in
            all Keras optimizers.
        loss_scale_factor, gradient_accumulation_steps, name: as in all Keras optimizers.

    Raises:
        ValueError: if an argument is not a number in its range, or a pattern is not a valid regular
            expression.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> import tf_adasum
        >>> def one_step(optimizer_class):
        ...     w = keras.Variable([3.0, 4.0])
        ...     optimizer = optimizer_class(learning_rate=0.1, weight_decay=0.1)
        ...     optimizer.apply([np.array([0.5, -2.0], "float32")], [w])
        ...     return [round(float(element), 4) for element in w.numpy()]
        >>> one_step(tf_adasum.optimizers.LAMB)  # u = (1.3, -0.6), φ = 5 / 1.4318
        [2.546, 4.2095]
        >>> one_step(keras.optimizers.Lamb)  # w = (2.97, 3.96), u = (1, -1), φ = 4.95 / 1.4142
        [2.62, 4.31]

    Reference:
        You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
        ICLR 2020 (arXiv 1904.00962), algorithm 2, with the identity as scaling function.
    """

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule | Callable[[], float] = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        exclude_from_weight_decay: str | Sequence[str] | None = None,
        exclude_from_layer_adaptation: str | Sequence[str] | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        name: str = "lamb",
    ):
        check_numbers(beta_1, beta_2, epsilon, weight_decay)
        no_decay = patterns("exclude_from_weight_decay", exclude_from_weight_decay)
        no_adaptation = patterns("exclude_from_layer_adaptation", exclude_from_layer_adaptation)
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=float(weight_decay),
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            name=name,
        )
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)
        # Keras has a method `exclude_from_weight_decay`: no attribute may have that name.
        self._no_decay_patterns = no_decay
        self._no_adaptation_patterns = no_adaptation

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        no_decay, no_adaptation = self._no_decay_patterns, self._no_adaptation_patterns
        return super().get_config() | {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "exclude_from_weight_decay": None if no_decay is None else list(no_decay),
            "exclude_from_layer_adaptation": None if no_adaptation is None else list(no_adaptation),
        }

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Raise a ValueError, because exclusions must be passed to the constructor."""
        raise ValueError(
            "Pass exclusions to the constructor: LAMB(exclude_from_weight_decay=[regular "
            "expressions on variable paths]). Received: exclude_from_weight_decay("
            f"var_list={var_list!r}, var_names={var_names!r})"
        )

    def build(self, variables):
        """Create m and v, and decide which variables use λ = 0 or φ = 1.

        Args:
            variables: list of `keras.Variable` or `tf.Variable`. The path of a `tf.Variable` is its
                name without ``":0"``.
        """
        if self.built:
            return
        super().build(variables)
        self._momentums = [self._add_moment(variable, "momentum") for variable in variables]
        self._velocities = [self._add_moment(variable, "velocity") for variable in variables]

        no_decay = self._no_decay_patterns or ()
        no_adaptation = self._no_adaptation_patterns
        no_adaptation = no_decay if no_adaptation is None else no_adaptation
        paths = [keras_compat.path_of(variable) for variable in variables]
        self._decays = [not _matches(no_decay, path) for path in paths]
        self._adapts = [not _matches(no_adaptation, path) for path in paths]
        unused = [
            pattern
            for pattern in dict.fromkeys([*no_decay, *no_adaptation])
            if not any(re.search(pattern, path) for path in paths)
        ]
        if unused:
            warnings.warn(
                f"LAMB excludes no variable by {', '.join(map(repr, unused))}, because no path "
                f"matches. The paths are: {', '.join(paths)} {see('TFA-312')}",
                stacklevel=2,
            )

    def _add_moment(self, variable, name):
        """Create a moment of zeros in float32 or more: in 16 bits, v would soon stop changing."""
        beside, dtype = keras_compat.tensorflow_variable(variable), tf.as_dtype(variable.dtype)
        with tf.distribute.get_strategy().extended.colocate_vars_with(beside):
            return self.add_variable(
                shape=variable.shape,
                dtype="float32" if dtype.size < 4 else dtype.name,
                name=f"{keras_compat.path_of(variable).replace('/', '_')}_{name}",
            )

    def update_step(self, gradient, variable, learning_rate):
        """Take one step on one variable; called by Keras.

        Args:
            gradient: tensor of the variable's shape, or `tf.IndexedSlices`.
            variable: one of the variables of `build`.
            learning_rate: η, scalar.
        """
        index = keras_compat.index_of(self, variable)
        m, v = (tf.convert_to_tensor(own[index]) for own in (self._momentums, self._velocities))
        g = tf.cast(gradient, m.dtype)
        if isinstance(g, tf.IndexedSlices):  # rows with the same index are summed
            g = tf.math.unsorted_segment_sum(g.values, g.indices, variable.shape[0])
        w = tf.cast(variable, m.dtype)

        # β is first rounded to the dtype of m, because otherwise the weights of v̂ would not add up
        # to 1. Then its powers are computed in float64, because 1 - β2^t would have only four
        # digits in float32.
        beta_1, beta_2 = (tf.constant(beta, m.dtype) for beta in (self.beta_1, self.beta_2))
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * tf.square(g)
        self.assign(self._momentums[index], m)
        self.assign(self._velocities[index], v)

        t = self.iterations + 1
        m_hat = m / _one_minus_power(beta_1, t)
        v_hat = v / _one_minus_power(beta_2, t)
        u = tf.math.divide_no_nan(m_hat, tf.sqrt(v_hat) + self.epsilon)
        if self._decays[index]:
            u += self.weight_decay * w

        step = tf.cast(learning_rate, w.dtype) * u
        if self._adapts[index]:
            step *= _trust_ratio(w, u)
        self.assign(variable, w - step)


def _one_minus_power(beta, t):
    """Return ``1 - β^t`` in the dtype of β, rounded once."""
    power = tf.pow(tf.cast(beta, tf.float64), tf.cast(t, tf.float64))
    return tf.cast(1 - power, beta.dtype)


def _trust_ratio(w, u):
    """Return ``‖w‖ / ‖u‖``, or 1 if one of them is 0."""
    w_norm, u_norm = (tf.sqrt(tf.reduce_sum(tf.square(x))) for x in (w, u))
    ratio = tf.math.divide_no_nan(w_norm, u_norm)
    return tf.where((w_norm > 0) & (u_norm > 0), ratio, tf.ones_like(ratio))


def _matches(patterns, path):
    return any(re.search(pattern, path) for pattern in patterns)
