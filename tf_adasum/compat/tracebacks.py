"""Removes the frames of this package, Keras and TensorFlow from tracebacks, as Keras does.

After `keras.config.disable_traceback_filtering()` all frames stay.
"""

import contextlib
import os
import threading
import types

import keras
import tensorflow as tf

# Folders and files whose frames are left out. The two modules call the code of those packages.
_LEFT_OUT = (
    *(os.path.join(os.path.dirname(package.__file__), "") for package in (keras, tf)),
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
    *(module.__file__ for module in (contextlib, threading)),
)


def shorten(error: BaseException) -> None:
    """Remove frames of libraries from the traceback of an exception, which is changed in place.

    If Keras's traceback filtering is off, nothing is changed.
    """
    if not getattr(keras, "config", tf.debugging).is_traceback_filtering_enabled():
        return
    entries, trace = [], error.__traceback__
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = None
    for entry in reversed(entries):
        if not entry.tb_frame.f_code.co_filename.startswith(_LEFT_OUT):
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = kept
