"""What TensorFlow writes although TF_CPP_MIN_LOG_LEVEL hides it. Standard library only.

TensorFlow 2.21 reads the variable while it is imported, after its first messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
DEFAULT_LEVEL = "2"  # errors and worse

# absl says the first before any message, of whatever level, that precedes its initialization; such
# a message has no date. Of those only level I is hidden.
_HIDDEN = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR\s*$"
    rb"|I0000 00:00:\d+\.\d+ +\d+ [\w./-]+\.(?:cc|h):\d+\] "
    # An error by name only: TensorFlow for GPUs registers them twice, and the first one counts.
    rb"|(?:E0000 00:00|\d{4}-\d\d-\d\d )[\d:.]+:? [\w :./]*\bcuda_(?:dnn|fft|blas)\.cc:\d+\] "
    rb"Unable to register cu\w+ factory: Attempting to register factory for plugin cu\w+ when one "
    rb"has already been registered"
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
    """Whether a line is such a message.

    Example:
        >>> is_hidden(b"I0000 00:00:1795348209.550645   25372 port.cc:153] oneDNN custom ...")
        True
        >>> is_hidden(b"E0000 00:00:1795348199.984137   25055 grpc_server_lib.cc:618] UNKNOWN ...")
        False
    """
    return _HIDDEN.match(line) is not None
