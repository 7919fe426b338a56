"""The registry of the hooks into TensorFlow, which the other files of this folder define."""

from tf_adasum.seams.hooks import Hooks
from tf_adasum.seams.tensorflow.private_names import library

hooks = Hooks("TensorFlow", library)
