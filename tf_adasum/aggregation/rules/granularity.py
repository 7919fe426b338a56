"""Granularity: which variables share their coefficients.

"variable"                     each variable has its own coefficients
"model"                        all variables share their coefficients
{"encoder/.*": "encoder"}      variables whose whole path matches the pattern share coefficients; a
                               variable that no pattern matches has its own coefficients
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_adasum.aggregation.rules.base import Granularity
from tf_adasum.arguments import check

EXPECTED = (
    "must be 'variable', 'model', or a dict from regular expressions on variable paths to names of "
    "groups"
)


def validated_granularity(granularity: Any) -> Granularity:
    """Return the granularity; if it is a mapping, return a dict.

    Raises:
        ValueError: if `granularity` has another form, or a pattern is not a valid regular
            expression.
    """
    if isinstance(granularity, str) and granularity in ("variable", "model"):
        return granularity
    is_dict = isinstance(granularity, Mapping) and len(granularity) > 0
    check("granularity", granularity, is_dict, EXPECTED)
    for pattern, group in granularity.items():
        are_texts = isinstance(pattern, str) and isinstance(group, str) and group != ""
        check("granularity", granularity, are_texts, EXPECTED)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"`granularity` has a pattern that is not a valid regular expression ({error}). "
                f"Received: {pattern!r}"
            ) from error
    return dict(granularity)


def groups(granularity: Granularity, paths: Sequence[str]) -> np.ndarray:
    """Return for each variable the number of its group.

    Args:
        granularity: the granularity that `validated_granularity` returned.
        paths: the variables' paths, such as ``"sequential/dense/kernel"``.

    Returns:
        int64 ``[V]`` for V variables: the numbers of their groups, which start at 0.

    Raises:
        ValueError: if a pattern matches no path, or a path belongs to two groups.

    Example:
        >>> groups({".*/bias": "biases"}, ["a/kernel", "a/bias", "b/kernel", "b/bias"])
        array([0, 1, 2, 1])
    """
    if granularity == "variable":
        return np.arange(len(paths))
    if not isinstance(granularity, Mapping):  # "model"
        return np.zeros(len(paths), np.int64)
    for pattern in granularity:
        if not any(re.fullmatch(pattern, path) for path in paths):
            raise ValueError(
                "`granularity` has a pattern that matches no variable; it must match the whole "
                f"path. Received: {pattern!r}; the paths are: {', '.join(paths)}"
            )
    numbers: dict[Any, int] = {}
    return np.array(
        [
            numbers.setdefault(_name(granularity, path) or ("alone", position), len(numbers))
            for position, path in enumerate(paths)
        ],
        np.int64,
    )


def _name(granularity: Mapping[str, str], path: str) -> str | None:
    """Return the name of a path's group; None if no pattern matches."""
    names = {group: p for p, group in granularity.items() if re.fullmatch(p, path)}
    if len(names) > 1:
        raise ValueError(
            f"`granularity` has patterns that overlap: {path!r} belongs to the groups "
            f"{sorted(names)}. Received: granularity={granularity!r}"
        )
    return next(iter(names), None)
