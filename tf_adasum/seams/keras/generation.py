"""Which generation of Keras this is, its private names, and the registry of the hooks into it."""

import keras
import tensorflow as tf

from tf_adasum._version import KERAS_OF_TENSORFLOW, TENSORFLOW_OF_ADDONS, series
from tf_adasum.seams.hooks import Hooks

IS_KERAS_2 = keras.__version__.startswith("2.")
if IS_KERAS_2 != (series(tf.__version__) == TENSORFLOW_OF_ADDONS):
    stacks = (f"Keras {own} on TensorFlow {other}" for other, own in KERAS_OF_TENSORFLOW.items())
    raise ImportError(
        f"tf_adasum works with {', or with '.join(stacks)}: install one of the pairs (README, 'Two "
        f"stacks'). Found: Keras {keras.__version__}, TensorFlow {tf.__version__}"
    )
if IS_KERAS_2:
    from tf_adasum.seams.keras.keras2 import private_names
else:
    from tf_adasum.seams.keras.keras3 import private_names

hooks = Hooks("Keras 2" if IS_KERAS_2 else "Keras 3")

__all__ = ["IS_KERAS_2", "hooks", "private_names"]
