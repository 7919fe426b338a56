"""Whereabouts: where in the program a thread is, seen from another one."""

import os
import sys
import threading

# Frames of these packages are not where a user has to look.
_PACKAGES = ("tensorflow", "keras", "tf_adasum", "wrapt", "numpy")


def of_thread(identity):
    """Returns where a thread is.

    Args:
        identity: its `ident`; None for the main thread.

    Returns:
        A value that is the same for a thread that has not moved (and may be for one that is back at
        the same place), and "train.py:41 (main)": the innermost line that belongs neither to this
        package nor to TensorFlow or Keras; "" if there is none. The value is None for a thread
        that is not in a call of TensorFlow's.
    """
    frame = sys._current_frames().get(identity or threading.main_thread().ident)
    if frame is None:
        return None, ""
    signature = None
    if "tensorflow" in frame.f_code.co_filename.split(os.sep):
        signature = (id(frame), frame.f_lasti)
    while frame is not None and _is_of_a_package(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return signature, ""
    code = frame.f_code
    return signature, f"{os.path.basename(code.co_filename)}:{frame.f_lineno} ({code.co_name})"


def _is_of_a_package(path):
    parts = path.split(os.sep)
    if any(package in parts[:-1] for package in _PACKAGES):
        return True
    return path.startswith(("<frozen", os.path.dirname(threading.__file__) + os.sep))
