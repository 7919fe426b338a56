"""Code that runs on one worker only, such as a callback that writes, and must not wait for others.

The others would never join, and all would wait, or mix up their collectives. Standard library only.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator

from tf_adasum.errors import see

# Packages that report a training to a server or a store: one worker is enough.
TRACKERS = frozenset(
    {
        "aim",
        "clearml",
        "comet_ml",
        "dvclive",
        "mlflow",
        "neptune",
        "neptune_tensorflow_keras",
        "wandb",
    }
)

# Packages that stand between a caller and what it calls.
_BETWEEN = frozenset({"contextlib", "keras", "tensorflow", "tf_adasum", "tf_keras"})

_running = threading.local()  # Keras may call callbacks from another thread during training


@contextlib.contextmanager
def alone(name: str, method: str) -> Iterator[None]:
    """Return a context manager for code that only this worker runs.

    Args:
        name: the name of the callback that runs, for messages.
        method: the method that is called.
    """
    before = getattr(_running, "what", None)
    _running.what = name, method
    try:
        yield
    finally:
        _running.what = before


def is_alone() -> bool:
    """Whether this thread does something that the other workers do not do."""
    return getattr(_running, "what", None) is not None


def is_called_by(packages: Collection[str]) -> bool:
    """Whether the code that called this, through Keras and TensorFlow, belongs to some packages.

    Args:
        packages: their names, such as `TRACKERS`.
    """
    frame = sys._getframe(1)
    while frame is not None and _package_of(frame) in _BETWEEN:
        frame = frame.f_back
    return frame is not None and _package_of(frame) in packages


def _package_of(frame):
    return frame.f_globals.get("__name__", "").partition(".")[0]


def refuse(call: str) -> None:
    """Refuse a call that needs all workers, within `alone`.

    Args:
        call: the call, such as "model.predict".

    Raises:
        RuntimeError: with the name of the callback.
    """
    if is_alone():
        name, method = _running.what
        raise RuntimeError(
            f"{call} needs all workers, but {name} runs on worker 0 only. Call it in your own "
            "callback that runs on all workers, and pass the result on; or read `logs`, which "
            f"all workers have. Received: {call} in {name}.{method} "
            f"{see('TFA-507')}"
        )
