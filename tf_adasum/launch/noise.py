"""What TensorFlow writes and users need not read. Standard library only.

First messages: TensorFlow 2.21 reads TF_CPP_MIN_LOG_LEVEL, which hides them, while it is imported,
after it has written them. Aborted collectives: where another worker is lost each one still waiting
writes several lines, and the exception that follows has the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
DEFAULT_LEVEL = "2"  # errors and worse

# absl prints the first before any message, of whatever level, that precedes its initialization;
# such a message has no date. Of those only level I is hidden.
_HIDDEN = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\s*$"
    rb"|I0000 00:00:\d+\.\d+ +\d+ [\w./-]+\.(?:cc|h):\d+\] "
    # An error by name only: TensorFlow for GPUs registers them twice, and the first one counts.
    rb"|(?:E0000 00:00|\d{4}-\d\d-\d\d )[\d:.]+:? [\w :./]*\bcuda_(?:dnn|fft|blas)\.cc:\d+\] "
    rb"Unable to register cu\w+ factory: Attempting to register factory for plugin cu\w+ when one "
    rb"has already been registered"
)

# A status that another worker is the reason of. Any other one may be the worker's own failure.
_ABORTED = re.compile(
    rb"(?:E0000 00:00|\d{4}-\d\d-\d\d )[\d:.]+:? [\w :./]*\b(?:base_collective_executor|ring_alg)"
    rb"\.cc:\d+\] (?:BaseCollectiveExecutor::StartAbort|Aborting Ring\w+ with) "
    rb"(?:UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): "
)
_GOES_ON = re.compile(
    rb"Additional GRPC error information from remote target |:UNKNOWN:Error received from peer "
    rb"|The error could be from a previous operation\. Restart your program to reset\.|\t? *\[\["
)


def hides_information(environment: Mapping[str, str]) -> bool:
    """Whether a worker's environment hides TensorFlow's messages of level I.

    Example:
        >>> hides_information({"TF_CPP_MIN_LOG_LEVEL": "2"}), hides_information({})
        (True, False)
    """
    level = environment.get(LEVEL, "")
    return level.isdecimal() and int(level) > 0


def is_hidden(line: bytes) -> bool:
    """Whether a line is one of TensorFlow's first messages.

    Example:
        >>> is_hidden(b"I0000 00:00:1795348209.550645   25372 port.cc:153] oneDNN custom ...")
        True
        >>> is_hidden(b"E0000 00:00:1795348199.984137   25055 grpc_server_lib.cc:618] UNKNOWN ...")
        False
    """
    return _HIDDEN.match(line) is not None


class Filter:
    """What is left out of one worker's stderr: it is asked for each line, in their order.

    Example:
        >>> aborted = b"E0000 00:00:1.5 7 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: x"
        >>> goes_on = b"Additional GRPC error information from remote target /job:worker:"
        >>> hides = Filter().hides
        >>> hides(goes_on), hides(aborted), hides(goes_on)
        (False, True, True)
    """

    def __init__(self) -> None:
        self._is_aborted = False  # the line before belongs to a message of aborted collectives

    def hides(self, line: bytes) -> bool:
        """Whether the next line is left out."""
        goes_on = self._is_aborted and _GOES_ON.match(line) is not None
        self._is_aborted = goes_on or _ABORTED.match(line) is not None
        return self._is_aborted or is_hidden(line)
