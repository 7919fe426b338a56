"""Where the hooks into TensorFlow are listed; each stands in the file of its concern."""

from tf_adasum.seams.hooks import Hooks
from tf_adasum.seams.tensorflow.private_names import library

hooks = Hooks("TensorFlow", library)
