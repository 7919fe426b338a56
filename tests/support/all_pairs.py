"""Few combinations of independent arguments: every pair of their values, not every combination."""

import itertools

import pytest

# Whose values go to a fixture; other names are arguments of the test.
FIXTURES = {"backend", "alignment"}

BACKENDS = ["custom", "tensorflow"]


def every_pair(*dimensions, allowed=lambda *values: True):
    """Return combinations in which every two values of different dimensions occur together.

    One value of each dimension makes a combination. The next one is always the first of those that
    bring most pairs that have not occurred yet, so the result is the same on every run.

    Args:
        dimensions: sequences of values.
        allowed: function of one value of each dimension that returns whether they may be combined.

    Example:
        >>> every_pair("ab", "xy", (1, 2))
        [('a', 'x', 1), ('a', 'y', 2), ('b', 'x', 2), ('b', 'y', 1)]
    """
    assert len(dimensions) > 1, "one dimension has no pairs"
    combinations = [
        combination
        for combination in itertools.product(*(enumerate(values) for values in dimensions))
        if allowed(*(value for _, value in combination))
    ]

    def pairs(combination):
        places = enumerate(index for index, _ in combination)
        return set(itertools.combinations(places, 2))

    missing = set().union(*map(pairs, combinations))
    chosen = []
    while missing:
        best = max(combinations, key=lambda combination: len(pairs(combination) & missing))
        missing -= pairs(best)
        chosen.append(tuple(value for _, value in best))
    return chosen


def parametrize_all_pairs(**dimensions):
    """Parametrize a test with `every_pair` of the values of its arguments.

    They may be named as a fixture that takes a parameter: "backend", "alignment".
    """
    return pytest.mark.parametrize(
        list(dimensions),
        every_pair(*dimensions.values()),
        indirect=[name for name in dimensions if name in FIXTURES],
        ids=lambda value: getattr(value, "name", None),
    )
