"""Refuses collectives in code that runs on one worker only, such as a callback that writes files.

The other workers would never join such a collective. Then all workers would wait forever, or would
run different collectives together. This module imports neither TensorFlow nor Keras.
"""

import contextlib
import sys
from collections.abc import Collection

from tf_adasum.compat.thread_flag import ThreadFlag
from tf_adasum.errors import see

# Packages that report a training run to a server or a store. One worker is enough to report.
TRACKERS = frozenset(
    "aim clearml comet_ml dvclive mlflow neptune neptune_tensorflow_keras wandb".split()
)

# Packages whose frames are skipped in the search for a caller.
_BETWEEN = frozenset({"contextlib", "keras", "tensorflow", "tf_adasum", "tf_keras"})

_running = ThreadFlag()  # Keras may call callbacks from another thread during training


def alone(name: str, method: str) -> contextlib.AbstractContextManager[None]:
    """Return a context manager for code that only this worker runs.

    Args:
        name: the name of the callback that runs, for messages.
        method: the method that is called.
    """
    return _running.within((name, method))


def is_alone() -> bool:
    """Return whether this thread runs code that the other workers do not run."""
    return _running.value is not None


def is_called_by(packages: Collection[str]) -> bool:
    """Return whether code of one of some packages has made the current call.

    Frames of Keras, TensorFlow, tf_adasum and contextlib are skipped.

    Args:
        packages: the names of the packages, such as `TRACKERS`.
    """
    frame = sys._getframe(1)
    while frame is not None and _package_of(frame) in _BETWEEN:
        frame = frame.f_back
    return frame is not None and _package_of(frame) in packages


def _package_of(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]


def refuse(call: str) -> None:
    """Raise an error if a call that needs all workers is made within `alone`.

    Args:
        call: the call, such as "model.predict".

    Raises:
        RuntimeError: within `alone`. The message names the callback.
    """
    if is_alone():
        name, method = _running.value
        raise RuntimeError(
            f"{call} needs all workers, but {name} runs on worker 0 only. Make this call in your "
            f"own callback that runs on all workers, and pass the result to {name}. Or read "
            f"`logs`, which all workers have. Received: {call} in {name}.{method} "
            f"{see('TFA-507')}"
        )
