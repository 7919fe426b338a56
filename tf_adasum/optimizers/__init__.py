"""Keras optimizers for training with many workers."""

from tf_adasum.optimizers.adascale import AdaScale
from tf_adasum.optimizers.delta_adasum import DeltaAdasum
from tf_adasum.optimizers.lamb import LAMB

__all__ = ["LAMB", "AdaScale", "DeltaAdasum"]
