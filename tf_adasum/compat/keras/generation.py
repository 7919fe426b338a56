"""Detects Keras 2 or Keras 3, and provides what shared files need of it, and its hooks."""

import warnings

import keras
import tensorflow as tf

from tf_adasum._version import SUPPORTED_VERSIONS, newer, unsupported_reason
from tf_adasum.compat.hooks import Hooks
from tf_adasum.errors import see

if what := unsupported_reason(tf.__version__, keras.__version__):
    raise ImportError(
        f"tf_adasum works with {SUPPORTED_VERSIONS}. {what}. Found: Keras {keras.__version__}, "
        f"TensorFlow {tf.__version__} {see('TFA-103')}"
    )
if what := newer(tf.__version__, keras.__version__):
    warnings.warn(
        f"tf_adasum is tested with {SUPPORTED_VERSIONS}. It has not been tested with {what}, and "
        f"may fail. Run `python -m tf_adasum.doctor` to see what has changed. {see('TFA-103')}",
        stacklevel=2,
    )
IS_KERAS_2 = keras.__version__.startswith("2.")
if IS_KERAS_2:
    from tf_adasum.compat.keras import private_names_keras2 as private_names
    from tf_adasum.compat.keras.optimizer_variables_keras2 import index_of, variables_of
else:
    from tf_adasum.compat.keras import private_names_keras3 as private_names
    from tf_adasum.compat.keras.optimizer_variables_keras3 import index_of, variables_of

hooks = Hooks("Keras 2" if IS_KERAS_2 else "Keras 3", private_names.library)

__all__ = ["IS_KERAS_2", "hooks", "index_of", "private_names", "variables_of"]
