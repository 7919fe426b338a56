"""Which generation of Keras this is, its private names, and the registry of the hooks into it."""

import keras
import tensorflow as tf

from tf_adasum import _version
from tf_adasum.seams.hooks import Hooks

IS_KERAS_2 = keras.__version__.startswith("2.")
if IS_KERAS_2 != (_version.series(tf.__version__) == _version.TENSORFLOW_OF_ADDONS):
    pairs = _version.KERAS_OF_TENSORFLOW.items()
    raise ImportError(
        "tf_adasum works with "
        + " and with ".join(f"Keras {own} on TensorFlow {tensorflow}" for tensorflow, own in pairs)
        + ": install one of the pairs (README, 'Two stacks'). Found: Keras "
        f"{keras.__version__}, TensorFlow {tf.__version__}"
    )
if IS_KERAS_2:
    from tf_adasum.seams.keras.keras2 import private_names
else:
    from tf_adasum.seams.keras.keras3 import private_names

hooks = Hooks("Keras 2" if IS_KERAS_2 else "Keras 3")

__all__ = ["IS_KERAS_2", "hooks", "private_names"]
