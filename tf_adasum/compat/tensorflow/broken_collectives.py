"""Detects failures of other workers in the error messages of TensorFlow 2.15 and 2.21."""

import re

import tensorflow as tf

from tf_adasum.health.diagnosis import CollectiveError

# Classes of errors about a connection. A user's own operations may also raise such errors.
_OF_A_CONNECTION = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

# Text before the reason. Each process that forwards the error adds this text once.
_ABORTED = "Collective ops is aborted by: "

# Text in the line below the reason, if another process or its machine has closed a connection.
_REMOTE = "Additional GRPC error information from remote target"

_DIFFERENT = re.compile(r"Collective instance \S+ expected|mismatch in the collective instance")
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")
_LONGEST_LINE = 300


def collective_error_of(error: BaseException) -> CollectiveError | None:
    """Return the `CollectiveError` of an exception; None if no other worker caused it."""
    if not isinstance(error, tf.errors.OpError):
        return None
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for above, line in zip(["", *lines], lines, strict=False):
        if _DIFFERENT.search(line):
            return CollectiveError(_clean(line), differ=True)
        if _ABORTED in line or line.startswith(_REMOTE):
            message = line.rpartition(_ABORTED)[2] if _ABORTED in line else above
            workers = dict.fromkeys(" ".join(task) for task in _TASK.findall(text))
            return CollectiveError(_clean(message) or type(error).__name__, tuple(workers))
    if isinstance(error, _OF_A_CONNECTION) or "DerivedStatus" in text:
        return CollectiveError()
    return None


def _clean(line):
    """Return a line without the details that TensorFlow appends."""
    line = re.split(r"\s*\[(?:\[\{\{node|Op:|type\.googleapis)", line)[0].removeprefix(_ABORTED)
    return line[:_LONGEST_LINE].rstrip(" :.")
