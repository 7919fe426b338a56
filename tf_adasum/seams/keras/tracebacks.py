"""Tracebacks of Keras's calls, for both generations."""

from tf_adasum.seams import tracebacks
from tf_adasum.seams.keras.fit import CALLS
from tf_adasum.seams.keras.generation import hooks, private_names
from tf_adasum.seams.keras.optimizers import is_ours


@hooks.replaces(private_names.Trainer, *CALLS, outermost=True)
def shorten_traceback(original, self, *args, **kwargs):
    """Let an error show the user's lines, without lines of the hooks, Keras and TensorFlow."""
    if not is_ours(self.distribute_strategy):
        return original(self, *args, **kwargs)
    with tracebacks.shortened():
        return original(self, *args, **kwargs)
