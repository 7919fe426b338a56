"""Find the lines of TensorFlow that users need not read. Uses only the standard library.

TensorFlow's first messages are hidden, because TensorFlow 2.21 reads TF_CPP_MIN_LOG_LEVEL,
which should hide them, only after it has written them. The messages of aborted collectives are also
hidden. If a worker is lost, each collective that still waits for this worker writes several lines,
but an exception with the same text follows.
"""

import re
from collections.abc import Mapping

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
DEFAULT_LEVEL = "2"  # errors and worse

# absl prints the line "WARNING: …" once, if a message is written before absl's initialization.
# Messages before the initialization have no date. Of these, only messages of level I are hidden.
_HIDDEN = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\s*$"
    rb"|I0000 00:00:\d+\.\d+ +\d+ [\w./-]+\.(?:cc|h):\d+\] "
    # TensorFlow for GPUs registers these factories twice. This does no harm: the first one counts.
    rb"|(?:E0000 00:00|\d{4}-\d\d-\d\d )[\d:.]+:? [\w :./]*\bcuda_(?:dnn|fft|blas)\.cc:\d+\] "
    rb"Unable to register cu\w+ factory: Attempting to register factory for plugin cu\w+ when one "
    rb"has already been registered"
)

# Status codes that a lost worker causes on the other workers. Any other status code may be the
# worker's own failure.
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
    """Return whether a worker's environment hides TensorFlow's messages of level I.

    Example:
        >>> hides_information({"TF_CPP_MIN_LOG_LEVEL": "2"}), hides_information({})
        (True, False)
    """
    level = environment.get(LEVEL, "")
    return level.isdecimal() and int(level) > 0


class Filter:
    """Decides which lines of one worker's stderr are left out. Pass it every line, in order.

    Example:
        >>> aborted = b"E0000 00:00:1.5 7 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: x"
        >>> goes_on = b"Additional GRPC error information from remote target /job:worker:"
        >>> hides = Filter().hides
        >>> hides(goes_on), hides(aborted), hides(goes_on)
        (False, True, True)
    """

    def __init__(self) -> None:
        self._is_aborted = False  # the previous line is about aborted collectives

    def hides(self, line: bytes) -> bool:
        """Return whether the next line is left out."""
        goes_on = self._is_aborted and _GOES_ON.match(line) is not None
        self._is_aborted = goes_on or _ABORTED.match(line) is not None
        return self._is_aborted or _HIDDEN.match(line) is not None
