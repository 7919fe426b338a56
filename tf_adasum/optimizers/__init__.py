"""Keras optimizers for training with many workers."""

from tf_adasum.optimizers.adascale import AdaScale

__all__ = ["AdaScale"]
