"""Finds the line of the user's program at which a thread is. Standard library only."""

import os
import sys
import threading
import traceback
import types
from collections.abc import Hashable

# Frames of these packages are not the user's program.
_PACKAGES = ("tensorflow", "keras", "tf_adasum", "wrapt", "numpy")
_STANDARD_LIBRARY = os.path.join(os.path.dirname(threading.__file__), "")


def of_thread(identity: int | None) -> tuple[Hashable, str]:
    """Return the position of a thread in the program.

    Args:
        identity: the `ident` of the thread; None for the main thread.

    Returns:
        Two values. The first value is None if the thread is not in a call of TensorFlow. Otherwise,
        the first value does not change while the thread stays in this call. (A later call from the
        same line may have the same value.) The second value is the innermost line
        outside of this package, TensorFlow and Keras, such as "train.py:41 (main)"; "" if there is
        no such line.
    """
    frame = sys._current_frames().get(identity or threading.main_thread().ident or 0)
    frames = [each for each, _ in traceback.walk_stack(frame)] if frame else []
    tensorflow = folders("tensorflow")
    # In a reduction, a call of TensorFlow waits for threads of this package.
    own = (_STANDARD_LIBRARY, *folders("tf_adasum"))
    callers = (each for each in frames if _is_in(each, tensorflow) or not _is_in(each, own))
    caller = next(callers, None)
    signature = (id(caller), caller.f_lasti) if caller and _is_in(caller, tensorflow) else None
    others = ("<frozen", _STANDARD_LIBRARY, *folders(*_PACKAGES))
    user = next((each for each in frames if not _is_in(each, others)), None)
    if user is None:
        return signature, ""
    code = user.f_code
    return signature, f"{os.path.basename(code.co_filename)}:{user.f_lineno} ({code.co_name})"


def _is_in(frame: types.FrameType, places: tuple[str, ...]) -> bool:
    return frame.f_code.co_filename.startswith(places)


def folders(*packages: str) -> tuple[str, ...]:
    """Return the folders of the given packages, except packages that are not imported.

    The packages' full paths are used, because the user's program may be in a folder with the name
    of a package.
    """
    files = (getattr(sys.modules.get(package), "__file__", None) for package in packages)
    return tuple(os.path.join(os.path.dirname(file), "") for file in files if file)
