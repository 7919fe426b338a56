"""The registry of the hooks into TensorFlow, which the other files of this folder define."""

from tf_adasum.compat.hooks import Hooks
from tf_adasum.compat.tensorflow.private_names import library

hooks = Hooks("TensorFlow", library)
