"""Granularity: which variables share coefficients, and Adasum of such groups."""

import numpy as np
import pytest
import tensorflow as tf
from support import oracle, scheme_oracle

from tf_adasum.aggregation import LocalReductionPlanner, RuleApplication, Scheme, aggregate
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


# ---- Adasum ------------------------------------------------------------------------------------

SHAPES = [(3, 5), (17,), (40,), (), (6,)]
DTYPES = [tf.float32, tf.float64, tf.float32, tf.float16, tf.float64]


@pytest.mark.parametrize("bucket_bytes", [None, 1])
@pytest.mark.parametrize("replicas", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "of",
    ["variable", "model", {"encoder/.*": "encoder"}, {".*/kernel": "k", ".*/bias": "b"}],
    ids=str,
)
def test_adasum_of_groups_is_adasum_of_their_vectors(backend, of, replicas, bucket_bytes):
    """Several dtypes, so several buckets, and with `bucket_bytes` 1 one for each variable."""
    gradients = [
        [value.astype(dtype.as_numpy_dtype) for value, dtype in zip(own, DTYPES, strict=True)]
        for own in scheme_oracle.gradients_of(SHAPES, replicas, tf.float64)
    ]
    groups = granularity.groups(of, PATHS)
    planner = LocalReductionPlanner(Scheme(Adasum(of), replicas))
    combined = aggregate(gradients, planner, bucket_bytes, RuleApplication(groups))
    for group in set(groups):
        members = np.flatnonzero(groups == group)
        vectors = [[own[i].astype(np.float64) for i in members] for own in gradients]
        total = sum(np.linalg.norm(np.concatenate(list(map(np.ravel, own)))) for own in vectors)
        wanted = scheme_oracle.as_model(oracle.adasum)(vectors)
        for i, one in zip(members, wanted, strict=True):
            scheme_oracle.assert_rounded(combined[i], one, [g[i] for g in gradients], total=total)
