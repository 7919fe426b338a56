"""Every pair of arguments, in few combinations."""

import itertools

import pytest
from support.all_pairs import every_pair


@pytest.mark.parametrize(
    ("sizes", "most"),
    [((3, 4), 12), ((2, 2, 2), 4), ((4, 4, 3), 16), ((2, 4, 10), 40), ((2, 2, 9, 3), 27)],
    ids=str,
)
def test_every_pair_of_values_occurs(sizes, most):
    dimensions = [[f"{place}.{index}" for index in range(size)] for place, size in enumerate(sizes)]
    chosen = every_pair(*dimensions)
    assert len(chosen) <= most and len(set(chosen)) == len(chosen)
    for one, other in itertools.combinations(range(len(sizes)), 2):
        found = {(combination[one], combination[other]) for combination in chosen}
        assert found == set(itertools.product(dimensions[one], dimensions[other]))


def test_what_is_not_allowed_does_not_occur():
    chosen = every_pair("ab", (1, 2), "xy", allowed=lambda *values: values[:2] != ("a", 1))
    assert {values[:2] for values in chosen} == {("a", 2), ("b", 1), ("b", 2)}
    assert {values[1:] for values in chosen} == {(1, "x"), (1, "y"), (2, "x"), (2, "y")}
