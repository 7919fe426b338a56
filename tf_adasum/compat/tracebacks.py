"""Removes the frames of this package, Keras and TensorFlow from tracebacks.

After `keras.config.disable_traceback_filtering()` all frames stay, as in Keras. This module imports
only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types

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
    folders = _folders()
    for each in _chain(error):
        each.__traceback__ = _without(each.__traceback__, folders)


def _is_filtering():
    keras, tensorflow = sys.modules.get("keras"), sys.modules.get("tensorflow")
    for module in (getattr(keras, "config", None), getattr(tensorflow, "debugging", None)):
        if hasattr(module, "is_traceback_filtering_enabled"):
            return module.is_traceback_filtering_enabled()
    return True


def _folders():
    """Return the folders and files whose frames are left out."""
    files = (getattr(sys.modules.get(package), "__file__", None) for package in _PACKAGES)
    folders = [os.path.join(os.path.dirname(file), "") for file in files if file]
    return (*folders, *(module.__file__ for module in _MODULES))


def _chain(error):
    """Yield an exception, and the exceptions that Python prints above it."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _without(trace, folders):
    """Return a traceback without frames of some folders; None if no frame is left."""
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = None
    for entry in reversed(entries):
        if not entry.tb_frame.f_code.co_filename.startswith(folders):
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
