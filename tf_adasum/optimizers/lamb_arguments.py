"""The arguments of LAMB, the same for both lanes."""

import math
import re
import sys


def check_number(name, value, below=math.inf):
    """Raises a ValueError unless an argument is a number of at least 0, and below another one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0 <= value < below and value <= sys.float_info.max):
        expected = "in [0, 1)" if below == 1 else "a finite number, 0 or more"
        raise ValueError(f"`{name}` of LAMB must be {expected}. Received: {name}={value!r}")


def patterns(name, given):
    """Returns an argument as a tuple of regular expressions; None if it is None.

    Raises:
        ValueError: for a pattern that is none.
    """
    if given is None:
        return None
    found = (given,) if isinstance(given, str) else given
    if not (isinstance(found, (list, tuple)) and all(isinstance(own, str) for own in found)):
        raise ValueError(
            f"`{name}` of LAMB must be a regular expression on variable paths or a list of them, "
            f"such as ['bias', 'layer_norm']. Received: {name}={given!r}"
        )
    for pattern in found:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{name}` of LAMB must have regular expressions; {pattern!r} is none: {error}. "
                f"Write re.escape(...) around a plain name. Received: {name}={given!r}"
            ) from error
    return tuple(found)
