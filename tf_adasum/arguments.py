"""Check arguments that users pass. Uses only the standard library.

A bool does not count as a number, and neither does NaN or infinity: `True` or NaN as a learning
rate is a mistake.
"""

import math
import numbers
from typing import Any


def check(name: str, value: Any, is_valid: bool, expected: str) -> None:
    """Raise a ValueError unless an argument is valid.

    Args:
        name: The argument's name.
        value: The value that the user passed.
        is_valid: Whether the value is valid.
        expected: The part of the message after the name, such as "must be True or False".

    Example:
        >>> check("rescale", "no", False, "must be True or False")
        Traceback (most recent call last):
        ValueError: `rescale` must be True or False. Received: rescale='no'
    """
    if not is_valid:
        raise ValueError(f"`{name}` {expected}. Received: {name}={value!r}")


def is_number(
    value: Any,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
    below: float = math.inf,
) -> bool:
    """Return whether a value is a finite real number within bounds.

    Args:
        value: Anything.
        at_least: The smallest allowed value. Defaults to no bound.
        above: A number that the value must exceed. Defaults to no bound.
        at_most: The largest allowed value. Defaults to no bound.
        below: A number that the value must stay below. Defaults to no bound.

    Example:
        >>> is_number(0.5, above=0, below=1), is_number(True), is_number(float("nan"))
        (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        number = float(value)
    except OverflowError:  # an int that is too large for a float
        return False
    return math.isfinite(number) and at_least <= number <= at_most and above < number < below


def check_number(name: str, value: Any, expected: str, **bounds: float) -> None:
    """Raise a ValueError unless an argument is a finite real number within bounds.

    Args:
        name: The argument's name.
        value: The value that the user passed.
        expected: The part of the message after the name, such as "must be in [0, 1)".
        **bounds: The bounds of `is_number`.

    Example:
        >>> check_number("momentum", 2, "must be in [0, 1)", at_least=0, below=1)
        Traceback (most recent call last):
        ValueError: `momentum` must be in [0, 1). Received: momentum=2
    """
    check(name, value, is_number(value, **bounds), expected)


def is_count(value: Any) -> bool:
    """Return whether a value is an int of 1 or more.

    Example:
        >>> is_count(3), is_count(3.0), is_count(True), is_count(0)
        (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_count(name: str, value: Any, expected: str = "must be an int of 1 or more") -> None:
    """Raise a ValueError unless an argument is an int of 1 or more.

    Args:
        name: The argument's name.
        value: The value that the user passed.
        expected: The part of the message after the name. Defaults to "must be an int of 1 or more".
    """
    check(name, value, is_count(value), expected)
