"""The private modules, classes and functions of Keras 2.15 that tf_adasum touches."""

# ruff: noqa: F401  (other files import these names)

import keras

from tf_adasum._version import KERAS_OF_ADDONS
from tf_adasum.compat.library import Library

library = Library("Keras", keras.__version__, f"pip install 'keras=={KERAS_OF_ADDONS}.*'")

try:
    from keras.src.backend import RandomGenerator
    from keras.src.engine.data_adapter import TensorLikeDataAdapter
    from keras.src.engine.training import flatten_metrics_in_order
    from keras.src.mixed_precision.loss_scale_optimizer import (
        BaseLossScaleOptimizer,
        LossScaleOptimizerV3,
    )
    from keras.src.optimizers import utils as optimizer_utils
    from keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
    from keras.src.optimizers.optimizer import CallableList, Optimizer
    from keras.src.saving import saving_lib
    from keras.src.saving.legacy import save as legacy_saving
    from keras.src.utils import losses_utils as losses
except ImportError as error:
    raise library.moved([str(error)]) from error

# The class with `fit`.
Trainer = keras.Model

# The function that divides losses by the number of replicas.
SCALING_OF_LOSSES = ("scale_loss_for_distribution",)
