"""Granularity: which variables share coefficients, and Adasum of such groups."""

import numpy as np
import pytest

from tf_adasum.aggregation import Scheme
from tf_adasum.aggregation.rules import AdaCons, Adasum, AggregationRule, granularity

PATHS = ["encoder/kernel", "encoder/bias", "head/kernel", "head/bias", "scale"]


@pytest.mark.parametrize(
    ("of", "paths", "groups"),
    [
        ("variable", PATHS, [0, 1, 2, 3, 4]),
        ("model", PATHS, [0, 0, 0, 0, 0]),
        ("variable", [], []),
        ("model", [], []),
        ({"encoder/.*": "encoder"}, PATHS, [0, 0, 1, 2, 3]),
        ({".*/bias": "biases"}, PATHS, [0, 1, 2, 1, 3]),
        ({"head/.*": "head", "encoder/.*": "encoder"}, PATHS, [0, 0, 1, 1, 2]),
        # Two patterns of one group that overlap.
        ({"encoder/.*": "g", ".*/bias": "g"}, PATHS, [0, 0, 1, 0, 2]),
        # A group has the name of a variable that is alone.
        ({"encoder/.*": "scale"}, PATHS, [0, 0, 1, 2, 3]),
        # An alternative has to match the whole path as well.
        ({"scale|head/bias": "g"}, PATHS, [0, 1, 2, 3, 3]),
        # A pattern that matches a part of a path does not count; equal paths stay apart.
        ({"a": "g"}, ["a", "ab", "ba", "b", "b", "a"], [0, 1, 2, 3, 4, 0]),
    ],
    ids=str,
)
def test_groups(of, paths, groups):
    numbers = granularity.groups(of, paths)
    assert numbers.dtype == np.int64 and numbers.tolist() == groups


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({".*/kernel": "k", "encoder": "g"}, "the whole path.*Received: 'encoder'; the paths are"),
        ({".*/kernel": "k", "head/bia": "g"}, "the whole path"),
        ({".*/kernel": "k", "cale": "g"}, "the whole path"),
        ({"encoder/.*": "a", ".*/bias": "b"}, r"overlap: 'encoder/bias' .* \['a', 'b'\]"),
        ({".*": "b", "encoder/b.*": "a"}, r"overlap: 'encoder/bias' .* \['a', 'b'\]"),
    ],
)
def test_patterns_match_whole_paths_and_do_not_overlap(of, message):
    with pytest.raises(ValueError, match=message):
        granularity.groups(of, PATHS)


def users_rule(of):
    class Mine(AggregationRule):
        granularity = of

    return Scheme.from_arguments(Mine(), 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            (wrong, "` must be 'variable', 'model', or a dict.*Received: granularity=")
            for wrong in ("Model", None, {}, ["model"], {"a": 1}, {1: "a"}, {"a": ""})
        ),
        ({"good/.*": "a", "(": "b"}, "` has .* not a valid regular expression.*Received: "),
    ],
    ids=repr,
)
@pytest.mark.parametrize("make", [Adasum, lambda of: AdaCons(granularity=of), users_rule])
def test_refuses(make, wrong, message):
    with pytest.raises(ValueError, match=f"`granularity{message}") as caught:
        make(wrong)
    received = repr(wrong) if "must be" in message else repr(list(wrong)[-1])
    assert str(caught.value).endswith(received)
