"""What runs on one worker alone, such as a callback that writes: it must not wait for the others.

They would never come, and both would wait, or mistake each other's collectives. Standard library
only.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tf_adasum.errors import see

_running = threading.local()  # Keras may call callbacks from another thread while training goes on


@contextlib.contextmanager
def alone(name: str, method: str) -> Iterator[None]:
    """Return a context manager for what this worker alone does.

    Args:
        name: of the callback that runs, for messages.
        method: the one of its methods that is called.
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


def refuse(call: str) -> None:
    """Refuse a call that takes all workers, within `alone`.

    Args:
        call: what is called, such as "model.predict".

    Raises:
        RuntimeError: naming the callback.
    """
    if is_alone():
        name, method = _running.what
        raise RuntimeError(
            f"{call} takes all workers, and {name} runs on worker 0 only: the others would never "
            "come. Do it in a callback of your own that runs on all workers, and give this one the "
            f"result, or read `logs`, which all workers have. Received: {call} in {name}.{method} "
            f"{see('TFA-507')}"
        )
