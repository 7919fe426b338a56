"""The private modules, classes and functions of Keras 3 that the seam touches."""

import keras

from tf_adasum._version import KERAS

try:
    from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
    from keras.src.backend.tensorflow import nn, trainer
    from keras.src.backend.tensorflow.optimizer import TFOptimizer, filter_empty_gradients
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
    from keras.src.losses import loss as losses
    from keras.src.optimizers.base_optimizer import BaseOptimizer
    from keras.src.optimizers.multi_optimizer import MultiOptimizer
    from keras.src.random import seed_generator as seed_generators
    from keras.src.saving import saving_lib
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
    from keras.src.trainers.data_adapters.py_dataset_adapter import (
        OrderedEnqueuer,
        PyDatasetAdapter,
    )
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
    from keras.src.trainers.trainer import Trainer as BaseTrainer
    from keras.src.utils.python_utils import pythonify_logs
except ImportError as error:
    raise ImportError(
        f"tf_adasum works with Keras {KERAS} on TensorFlow; Keras {keras.__version__} has moved "
        f"something it builds on: {error}. Install a supported one: pip install 'keras=={KERAS}.*'"
    ) from error

# The class with `fit`.
Trainer = TensorFlowTrainer

# What scales losses by the number of replicas, and what takes that back.
SCALING_OF_LOSSES = ("scale_loss_for_distribution", "unscale_loss_for_distribution")

# The attribute with the moving averages of the weights, where an optimizer has `use_ema`.
MOVING_AVERAGES = "_model_variables_moving_average"

__all__ = [
    "MOVING_AVERAGES",
    "SCALING_OF_LOSSES",
    "BaseOptimizer",
    "BaseTrainer",
    "GeneratorDataAdapter",
    "MultiOptimizer",
    "OrderedEnqueuer",
    "PyDatasetAdapter",
    "TFDatasetAdapter",
    "TFEpochIterator",
    "TFOptimizer",
    "Trainer",
    "class_weight_to_sample_weights",
    "filter_empty_gradients",
    "get_keras_mask",
    "losses",
    "nn",
    "pythonify_logs",
    "saving_lib",
    "seed_generators",
    "set_keras_mask",
    "trainer",
]
