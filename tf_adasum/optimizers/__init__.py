"""Keras optimizers for training with many workers."""

import importlib
import warnings

from tf_adasum._version import ADDONS
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers.adascale import AdaScale
from tf_adasum.optimizers.delta_adasum import DeltaAdasum

# With Keras 2, LAMB is a subclass of the LAMB of TensorFlow Addons. The import of Addons warns that
# its development has ended. Nothing else needs Addons.
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        LAMB = importlib.import_module(keras_compat.LAMB_MODULE).LAMB
except ModuleNotFoundError as error:
    if error.name != "tensorflow_addons":
        raise


def __getattr__(name):
    if name == "LAMB":
        raise ImportError(
            "With Keras 2, optimizers.LAMB needs TensorFlow Addons, which is not installed: "
            f"pip install 'tensorflow-addons=={ADDONS}.*'"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["LAMB", "AdaScale", "DeltaAdasum"]
