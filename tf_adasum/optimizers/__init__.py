"""Keras optimizers for training with many workers."""

import importlib

from tf_adasum import keras_seam
from tf_adasum.optimizers.adascale import AdaScale
from tf_adasum.optimizers.delta_adasum import DeltaAdasum

# Of TensorFlow Addons where that is, which is with Keras 2.
LAMB = importlib.import_module(keras_seam.LAMB_MODULE).LAMB

__all__ = ["LAMB", "AdaScale", "DeltaAdasum"]
