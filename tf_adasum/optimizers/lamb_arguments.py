"""Check the arguments of LAMB, which are the same for Keras 2 and Keras 3."""

import re

from tf_adasum.arguments import check, check_number


def check_numbers(beta_1, beta_2, epsilon, weight_decay):
    """Raise a ValueError if one of these arguments is not a number in its range."""
    for name, value in {"beta_1": beta_1, "beta_2": beta_2}.items():
        check_number(name, value, "of LAMB must be in [0, 1)", at_least=0, below=1)
    for name, value in {"epsilon": epsilon, "weight_decay": weight_decay}.items():
        check_number(name, value, "of LAMB must be a finite number, 0 or more", at_least=0)


def patterns(name, given):
    """Return the value of an argument as a tuple of regular expressions; None stays None.

    Args:
        name: name of the argument, for the error message.
        given: str, list or tuple of str, or None.

    Raises:
        ValueError: if the value has another type, or a pattern is not a valid regular expression.
    """
    if given is None:
        return None
    found = (given,) if isinstance(given, str) else given
    are_texts = isinstance(found, (list, tuple)) and all(isinstance(own, str) for own in found)
    expected = "of LAMB must be a regular expression on variable paths or a list of them, such as "
    check(name, given, are_texts, f"{expected}['bias', 'layer_norm']")
    for pattern in found:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`{name}` of LAMB must be regular expressions; {pattern!r} is not valid: {error}. "
                f"Use re.escape(...) for a plain name. Received: {name}={given!r}"
            ) from error
    return tuple(found)
