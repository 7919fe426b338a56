"""The base class of optimizers that wrap another optimizer."""

import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.arguments import check
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import see


def of_inner_optimizer(name):
    """Return a property that reads and writes the attribute `name` of the inner optimizer."""

    def read(self):
        inner = vars(self).get("inner_optimizer")
        return getattr(inner, name, None)

    def write(self, value):
        if "inner_optimizer" in vars(self):  # Keras's constructor sets defaults earlier
            setattr(self.inner_optimizer, name, value)

    return property(read, write)


class WrapperOptimizer(keras_compat.WrapperBase):
    """An optimizer that changes the updates of the optimizer that it wraps.

    The inner optimizer keeps everything else: its slots, `iterations`, accumulation, clipping,
    weight decay and moving averages. Its settings, such as `clipnorm` and `weight_decay`, are also
    attributes of this optimizer, which you can read and set.
    The changed update is a `keras_compat.Step`; see `set_step`.

    Subclasses define two methods that raise a ValueError: `check_strategy(strategy)`, if the
    optimizer cannot be built under the current strategy or TensorFlow's default strategy, and
    `check()`, if it cannot train, which only a call of `apply` checks. A property `settings` has
    the settings that must match on all workers, as a str.

    Args:
        optimizer: the `keras.optimizers.Optimizer`, which `check_optimizer` accepts.
        name: name of this optimizer.
    """

    built: bool

    def __init__(self, optimizer, name):
        keras_compat.install()
        super().__init__(name)
        self.inner_optimizer = optimizer

    def set_step(self, step):
        """Set the step that updates the weights for the inner optimizer.

        Args:
            step: a `keras_compat.Step` of the inner optimizer.
        """
        self._step = self.inner_optimizer.step_of_wrapper = step

    def build(self, variables):
        """Build the inner optimizer and the step for a list of Keras variables."""
        if self.built:
            return
        self._strategy = tf.distribute.get_strategy()
        self.check_strategy(self._strategy)
        self._step.enter(self._strategy)
        self.check_same_settings()  # before variables are created, which all workers do together
        keras_compat.build(self.inner_optimizer, variables)
        self.built = True
        self._step.build(self, variables)

    def apply(self, grads, trainable_variables=None):
        """Apply the gradients of this replica, as `keras.optimizers.Optimizer.apply` does."""
        if trainable_variables is not None:
            keras_compat.build(self, trainable_variables)
        self.check()

        def step(gradients):
            with self._step.called_by_wrapper():
                keras_compat.apply(self.inner_optimizer, gradients, trainable_variables)

        keras_compat.apply_unless_nonfinite(self, grads, trainable_variables, step)

    def check_same_settings(self):
        """Raise a ValueError on all workers if the settings of their optimizers differ."""
        steps = f"gradient_accumulation_steps={self.gradient_accumulation_steps}"
        inner = f"{type(self.inner_optimizer).__name__}({steps})"
        settings = f"{type(self).__name__}({inner}, {self.settings})"
        keras_compat.check_same_settings(self._strategy, settings)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Exclude variables, as `keras.optimizers.Optimizer.exclude_from_weight_decay` does."""
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def save_own_variables(self, store):
        """Save the variables of this optimizer; Keras saves the inner optimizer separately."""
        for index, variable in enumerate(self._variables_to_save()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store):
        """Load the variables that `save_own_variables` has saved; warn if their number differs."""
        own = self._variables_to_save()
        if len(store.keys()) != len(own):
            warnings.warn(
                f"The state of {self.name!r} is reset, because the file has {len(store.keys())} "
                f"variables of this optimizer, which needs {len(own)}. {see('TFA-604')}",
                stacklevel=2,
            )
            return
        for index, variable in enumerate(own):
            value = store[str(index)]
            name = getattr(variable, "path", "").rpartition("/")[2]  # Keras 2 has no paths
            if name.startswith("virtual_") and value.shape[1:] == variable.shape[1:]:
                value = np.resize(value, variable.shape)  # reused in order
            variable.assign(value)

    @property
    def iterations(self):
        """The number of updates by the inner optimizer."""
        return self.inner_optimizer.iterations

    def scale_loss(self, loss):
        """Scale a loss by the inner optimizer's `loss_scale_factor`."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list):
        """Set the final values at the end of training: with `use_ema`, the moving averages."""
        if hasattr(self.inner_optimizer, "finalize_variable_values"):
            self.inner_optimizer.finalize_variable_values(var_list)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Return an optimizer from the config that `get_config` returned."""
        config = dict(config)
        config["optimizer"] = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return cls(**config)


for attribute in (
    *("clipnorm", "clipvalue", "global_clipnorm", "weight_decay"),
    *("use_ema", "ema_momentum", "ema_overwrite_frequency"),
    *("gradient_accumulation_steps", "loss_scale_factor"),
    *keras_compat.OF_SWAP_EMA_WEIGHTS,
):
    setattr(WrapperOptimizer, attribute, of_inner_optimizer(attribute))


def check_optimizer(wrapper, optimizer):
    """Check that an optimizer can be wrapped.

    Args:
        wrapper: name of the wrapper's class.
        optimizer: the object that the user passed.

    Raises:
        ValueError: if the object is not a single Keras optimizer, if it is a wrapper, or if it is
            already wrapped.
    """
    expected = f"of {wrapper} must be a Keras optimizer, such as keras.optimizers.SGD(0.1)"
    check("optimizer", optimizer, isinstance(optimizer, keras_compat.OPTIMIZERS), expected)
    if isinstance(optimizer, keras_compat.LOSS_SCALE_OPTIMIZERS):
        raise ValueError(
            f"Swap the two wrappers: LossScaleOptimizer({wrapper}(optimizer)). "
            "Received: optimizer=LossScaleOptimizer(…)"
        )
    # As MultiOptimizer has, of Keras and of TensorFlow Addons.
    is_several = hasattr(optimizer, "optimizers") or hasattr(optimizer, "optimizer_specs")
    if is_several or len(keras_compat.optimizers_within(optimizer)) > 1:
        raise ValueError(
            f"{wrapper} wraps one optimizer, not several optimizers for different variables or "
            f"another wrapper. Received: optimizer={type(optimizer).__name__}(…)"
        )
    if keras_compat.is_wrapped(optimizer):
        raise ValueError(
            f"This optimizer is already wrapped: pass a new optimizer to {wrapper}. "
            f"Received: optimizer={optimizer!r}"
        )
