"""Shortens the tracebacks of errors in methods of a model, for Keras 2 and 3."""

from tf_adasum.compat import tracebacks
from tf_adasum.compat.keras.fit import CALLS
from tf_adasum.compat.keras.generation import hooks, private_names
from tf_adasum.compat.keras.optimizers import is_ours


@hooks.replaces(private_names.Trainer, *CALLS, outermost=True)
def shorten_traceback(original, self, *args, **kwargs):
    """Remove the frames of tf_adasum, Keras and TensorFlow from the traceback of an error."""
    if not is_ours(self.distribute_strategy):
        return original(self, *args, **kwargs)
    try:
        return original(self, *args, **kwargs)
    except Exception as error:
        tracebacks.shorten(error)
        raise
