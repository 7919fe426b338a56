"""Removes the frames of this package, Keras and TensorFlow from tracebacks.

After `keras.config.disable_traceback_filtering()` all frames stay, as in Keras. This module imports
neither TensorFlow nor Keras.
"""

import contextlib
import sys
import threading
import types

from tf_adasum.health import call_site

# Packages whose frames are left out.
_PACKAGES = ("keras", "tensorflow", "tf_adasum", "tf_keras", "wrapt")

# Modules of the standard library that call the code of those packages.
_MODULES = (contextlib, threading)


def shorten(error: BaseException) -> None:
    """Remove frames of libraries from the tracebacks of an exception and its causes.

    If Keras's traceback filtering is off, nothing is changed.

    Args:
        error: the exception, which is changed in place.
    """
    if not _is_filtering():
        return
    left_out = (*call_site.folders(*_PACKAGES), *(module.__file__ for module in _MODULES))
    for each in _chain(error):
        each.__traceback__ = _without(each.__traceback__, left_out)


def _is_filtering():
    keras, tensorflow = sys.modules.get("keras"), sys.modules.get("tensorflow")
    for module in (getattr(keras, "config", None), getattr(tensorflow, "debugging", None)):
        if hasattr(module, "is_traceback_filtering_enabled"):
            return module.is_traceback_filtering_enabled()
    return True


def _chain(error):
    """Yield an exception, and the exceptions that Python prints above it."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _without(trace, places):
    """Return a traceback without frames of some folders and files; None if no frame is left."""
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = None
    for entry in reversed(entries):
        if not entry.tb_frame.f_code.co_filename.startswith(places):
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
