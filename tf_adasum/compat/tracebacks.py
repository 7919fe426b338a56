"""Removes the frames of this package, Keras and TensorFlow from tracebacks.

After `keras.config.disable_traceback_filtering()` all frames stay, as in Keras. This module imports
only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import types

# Packages whose frames are left out.
_PACKAGES = ("keras", "tensorflow", "tf_adasum", "tf_keras", "wrapt")

# Modules of the standard library that call the code of those packages.
_MODULES = (contextlib, threading)

# Text that TensorFlow appends to an error of an operation: where the operation was created.
_ORIGIN = re.compile(r" defined at \(most recent call last\):\n((?:  File .*\n(?:\n|    .*\n)*)*)")
_FRAME = re.compile(r'  File "(.*)", line .*\n(?:\n|    .*\n)*')

# Text that AutoGraph puts before the message of an error in a converted function.
_CONVERTED = "in user code:\n"
_FRAME_OF_CONVERTED = re.compile(r'    File "(.*)", line .*\n(?:        .*\n)*')


def shorten(error: BaseException) -> None:
    """Remove frames of libraries from the tracebacks of an exception and its causes.

    Frames of libraries are also removed from the text of TensorFlow's errors. If Keras's traceback
    filtering is off, nothing is changed.

    Args:
        error: the exception, which is changed in place.
    """
    if not _is_filtering():
        return
    folders = _folders()
    for each in _chain(error):
        each.__traceback__ = _without(each.__traceback__, folders)
        if each.args and isinstance(each.args[0], str) and each.args[0].startswith(_CONVERTED):
            each.args = (_without_frames(each.args[0], folders), *each.args[1:])
        if isinstance(text := getattr(each, "_message", None), str):  # of tf.errors.OpError
            each._message = _ORIGIN.sub(lambda found: _origin(found[1], folders), text)


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


def _without_frames(text, folders):
    """Return AutoGraph's message without the frames of libraries.

    If no frame is left, return only the text of the error, without the name of its class.
    """
    kept = _FRAME_OF_CONVERTED.sub(
        lambda found: "" if found[1].startswith(folders) else found[0], text
    )
    if _FRAME_OF_CONVERTED.search(kept):
        return kept
    error = kept.removeprefix(_CONVERTED).strip()
    return re.sub(r"^[\w.]*(?:Error|Exception): ", "", error)


def _origin(frames, folders):
    """Return the text that shows where an operation was created, without library frames."""
    own = [found[0] for found in _FRAME.finditer(frames) if not found[1].startswith(folders)]
    return " defined at (most recent call last):\n" + "".join(own) if own else ":\n"
