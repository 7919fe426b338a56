"""The exceptions of this package, and the code at the end of messages."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys
import warnings
from collections.abc import Callable

LAUNCHER = "TF_ADASUM_LAUNCHER"  # the environment variable of the launcher's workers
RESTARTS = "restarts"  # its value if the launcher starts the workers again after a failure

# Functions that are called with each new `WorkerLostError`, even if the script catches it.
when_lost: list[Callable[[WorkerLostError], None]] = []


def see(code: str) -> str:
    """Return the text that ends a message: the command that prints what to do about the message.

    If `[project.urls]` of pyproject.toml has the site's address (under `Documentation`), the text
    also has the address of the site's section about the message.

    Args:
        code: the code of the message, such as "TFA-501".

    Example:
        >>> see("TFA-501")
        '(tf-adasum-doctor --explain TFA-501)'
    """
    page = f", {_site()}/troubleshooting.html#{code.lower()}" if _site() else ""
    return f"(tf-adasum-doctor --explain {code}{page})"


def deprecated(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name is deprecated.

    Args:
        old: the old name.
        new: what to write.
        stacklevel: as for `warnings.warn`. Defaults to 3, the caller of the calling function.
    """
    warnings.warn(f"{old} is deprecated. Use {new}.", DeprecationWarning, stacklevel=stacklevel)


def say(text: str) -> None:
    """Print a line to stderr, in a single call, because other threads also print lines.

    If nothing can be written there, the program continues.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        print(f"tf_adasum: {text}\n", end="", file=sys.stderr, flush=True)


@functools.cache
def hint(text: str) -> None:
    """Print a line to stderr; each line once."""
    say(text)


@functools.cache
def _site() -> str:
    """Return the address of the documentation from the package's metadata, or ""."""
    try:
        urls = importlib.metadata.metadata("tf-adasum").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:  # a folder that is not installed
        return ""
    named = dict(each.split(", ", 1) for each in urls)
    return named.get("Documentation", "").rstrip("/")


class WorkerLostError(RuntimeError):
    """Another worker ended, stopped, failed or cannot be reached, so this worker cannot continue.

    The message names the other worker or the broken connection, and tells you what to do. This
    process cannot use TensorFlow's collectives any more, but you can still save weights.

    Example:
        >>> try:
        ...     history = model.fit(x, y, verbose=0)
        ... except tf_adasum.WorkerLostError as error:
        ...     model.save_weights("last.weights.h5")
        ...     raise
    """

    def __init__(self, *args: object):  # no docstring, which the reference would show
        super().__init__(*args)
        for report in when_lost:
            report(self)


class ReplicasDifferError(RuntimeError):
    """Replicas hold different values of a variable that should be equal; raised on all workers.

    The message names the first variable that differs and the replicas that differ.

    Example:
        >>> try:
        ...     strategy.check_replicas()
        ... except tf_adasum.ReplicasDifferError as error:
        ...     print(error)
    """


class DamagedBackupError(Exception):
    """A backup is cut off or damaged; the message names the file."""


# The old names of classes: they work, with a DeprecationWarning.
RENAMED = {"ReplicasDiffer": ReplicasDifferError, "DamagedBackup": DamagedBackupError}


def __getattr__(name: str) -> type[Exception]:
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    deprecated(name, RENAMED[name].__name__)
    return RENAMED[name]
