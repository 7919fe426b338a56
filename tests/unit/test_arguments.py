"""Which values are numbers, and what is said of one that is not."""

import math
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tf_adasum import arguments

INFINITY = math.inf


@pytest.mark.parametrize("value", [0, -1, 0.5, 1e308, Fraction(1, 3), np.float32(2), np.int64(2)])
def test_numbers(value):
    assert arguments.is_number(value)


@pytest.mark.parametrize(
    "value",
    [
        *(True, None, "1", 1j, [1], np.bool_(True), np.ones([])),
        *(math.nan, -INFINITY, np.float16(INFINITY), 10**400),
    ],
    ids=repr,
)
def test_what_is_no_number(value):
    assert not arguments.is_number(value)
    with pytest.raises(ValueError, match=r"^`rate` must be a number\. Received: rate="):
        arguments.check_number("rate", value, "must be a number")
    with pytest.raises(ValueError, match=r"^`rate` must be below 1\. Received: rate=1$"):
        arguments.check_number("rate", 1, "must be below 1", below=1)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(*[st.integers(-2, 2) | st.floats(-2, 2)] * 3)
def test_bounds(value, least, most):
    assert arguments.is_number(value, at_least=least, at_most=most) == (least <= value <= most)
    assert arguments.is_number(value, above=least, below=most) == (least < value < most)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "1", math.nan, np.int64(1)], ids=repr)
def test_counts(value):
    arguments.check_count("every", 10**400)
    with pytest.raises(ValueError, match=r"`every` must be an int of 1 or more\. Received: every="):
        arguments.check_count("every", value)
