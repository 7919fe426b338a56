"""Removes the frames of this package, Keras and TensorFlow from tracebacks.

After `keras.config.disable_traceback_filtering()` all frames stay, as in Keras. This module imports
only the standard library.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator

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

_log = logging.getLogger("tf_adasum")


def shorten(error: BaseException) -> None:
    """Remove frames of libraries from the tracebacks of an exception and its causes.

    If this package raised the exception, the cause is hidden, and logged at debug level. Frames of
    libraries are also removed from the text of TensorFlow's errors. If Keras's traceback filtering
    is off, nothing is changed.

    Args:
        error: the exception, which is changed in place.
    """
    if not _is_filtering():
        return
    folders = _folders()
    chain = list(_chain(error))
    if _is_our_own(error) and len(chain) > 1:
        _log.debug("%s was raised from:", type(error).__name__, exc_info=chain[1])
        error.__cause__ = error.__context__ = None
        chain = chain[:1]
    for each in chain:
        each.__traceback__ = _without(each.__traceback__, folders)
        if each.args and isinstance(each.args[0], str) and each.args[0].startswith(_CONVERTED):
            each.args = (_without_frames(each.args[0], folders), *each.args[1:])
        if isinstance(text := getattr(each, "_message", None), str):  # of tf.errors.OpError
            each._message = _ORIGIN.sub(lambda found: _origin(found[1], folders), text)


@contextlib.contextmanager
def shortened(inner: contextlib.AbstractContextManager | None = None) -> Iterator[None]:
    """Return a context manager that calls `shorten` on an exception of the code inside.

    Args:
        inner: another context manager for the same code. Defaults to none.
    """
    try:
        with inner or contextlib.nullcontext():
            yield
    except Exception as error:
        shorten(error)
        raise


def shorten_uncaught() -> None:
    """Shorten the tracebacks of uncaught exceptions. A second call does nothing."""
    if not getattr(sys.excepthook, "shortens", False):
        sys.excepthook = _shortening(sys.excepthook)


def line_of_caller(made: object) -> str:
    """Return the line of the user's program that creates an object: "train.py, line 12".

    Args:
        made: the object. Lines in methods of this object are skipped.
    """
    folders, frame = _folders(), sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(folders)
        or next(iter(frame.f_locals.values()), None) is made
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else ""


def _shortening(previous: Callable) -> Callable:
    def print_exception(kind, error, trace):
        if error is not None and error.__traceback__ is trace:
            shorten(error)
            trace = error.__traceback__
        previous(kind, error, trace)

    print_exception.shortens = True
    return print_exception


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


def _is_our_own(error):
    """Return whether code of this package, and not TensorFlow, raised an exception."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
    is_of_tensorflow = hasattr(error, "node_def")
    return bool(frames) and not is_of_tensorflow and _file_of(frames[-1]).startswith(own)


def _file_of(frame_and_line):
    return frame_and_line[0].f_code.co_filename


def _without(trace, folders):
    """Return a traceback without frames of some folders. If no frame would be left, keep all."""
    kept = None
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    for entry in reversed(entries):
        if not entry.tb_frame.f_code.co_filename.startswith(folders):
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept or (entries[0] if entries else None)


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
