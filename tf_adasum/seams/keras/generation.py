"""Which generation of Keras this is, its private names, and the registry of the hooks into it."""

import keras
import tensorflow as tf

from tf_adasum.seams.hooks import Hooks

IS_KERAS_2 = keras.__version__.startswith("2.")
if IS_KERAS_2 != tf.__version__.startswith("2.15."):
    raise ImportError(
        "tf_adasum works with Keras 2.15 on TensorFlow 2.15, and with Keras 3.15 on TensorFlow "
        f"2.21: install one of the pairs (README, 'Two lanes'). Found: Keras {keras.__version__}, "
        f"TensorFlow {tf.__version__}"
    )
if IS_KERAS_2:
    from tf_adasum.seams.keras.keras2 import private_names
else:
    from tf_adasum.seams.keras.keras3 import private_names

hooks = Hooks("Keras 2" if IS_KERAS_2 else "Keras 3")

__all__ = ["IS_KERAS_2", "hooks", "private_names"]
