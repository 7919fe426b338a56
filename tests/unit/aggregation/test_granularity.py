"""Granularity: which variables share coefficients, and Adasum on what they make together."""

import collections
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import oracle

from tf_adasum.aggregation import LocalExchange, RuleApplication, Scheme, aggregate, rules
from tf_adasum.aggregation.rules import granularity

PATHS = ["encoder/kernel", "encoder/bias", "head/kernel", "head/bias", "scale"]


# ---- groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        ("variable", [0, 1, 2, 3, 4]),
        ("model", [0, 0, 0, 0, 0]),
        ({".*": "all"}, [0, 0, 0, 0, 0]),
        ({"encoder/.*": "encoder"}, [0, 0, 1, 2, 3]),
        ({".*/bias": "biases"}, [0, 1, 2, 1, 3]),
        ({"head/.*": "head", "encoder/.*": "encoder"}, [0, 0, 1, 1, 2]),
        ({".*/kernel": "kernels", ".*/bias": "biases"}, [0, 1, 0, 1, 2]),
        # Two patterns of one group, also where they overlap.
        ({"encoder/bias": "g", "scale": "g"}, [0, 1, 2, 3, 1]),
        ({"encoder/.*": "g", ".*/bias": "g"}, [0, 0, 1, 0, 2]),
        # A group may have the name of a variable that is alone.
        ({"encoder/.*": "scale"}, [0, 0, 1, 2, 3]),
        # An alternative is part of the whole path, too.
        ({"scale|head/bias": "g"}, [0, 1, 2, 3, 3]),
    ],
    ids=str,
)
def test_groups(of, expected):
    numbers = granularity.groups(of, PATHS)
    assert numbers.dtype == np.int64 and numbers.tolist() == expected


def test_variables_of_one_path_stay_apart():
    assert granularity.groups({"a": "g"}, ["a", "b", "b", "a"]).tolist() == [0, 1, 2, 0]


def test_a_part_of_a_path_is_no_match():
    assert granularity.groups({"a": "g"}, ["a", "ab", "ba"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("of", ["variable", "model"])
def test_no_variables(of):
    assert granularity.groups(of, []).tolist() == []


@pytest.mark.parametrize("pattern", ["encoder", "kernel", "/bias", "head/bia", "cale", "Scale"])
def test_a_pattern_has_to_match_a_whole_path(pattern):
    with pytest.raises(ValueError) as caught:
        granularity.groups({".*/kernel": "kernels", pattern: "g"}, PATHS)
    message = str(caught.value)
    assert "matches no variable; it must match the whole path" in message
    assert f"Received: {pattern!r}" in message
    assert all(path in message for path in PATHS)


@pytest.mark.parametrize(
    "of", [{"encoder/.*": "a", ".*/bias": "b"}, {".*": "b", "encoder/b.*": "a"}]
)
def test_patterns_of_two_groups_must_not_overlap(of):
    with pytest.raises(ValueError, match=r"overlap: 'encoder/bias' .* \['a', 'b'\]") as caught:
        granularity.groups(of, PATHS[1:])
    assert f"granularity={of!r}" in str(caught.value)


# ---- what is a granularity ---------------------------------------------------------------------


def test_checked_returns_what_it_got():
    assert granularity.checked("variable") == "variable"
    assert granularity.checked("model") == "model"
    of = {"encoder/.*": "encoder"}
    for mapping in (of, collections.OrderedDict(of), types.MappingProxyType(of)):
        found = granularity.checked(mapping)
        assert found == of and type(found) is dict
    own = granularity.checked(of)
    of["head/.*"] = "head"
    assert own == {"encoder/.*": "encoder"}, "it is a copy"


@pytest.mark.parametrize(
    "wrong",
    ["", "layer", None, 0, True, {}, ["model"], [("a", "b")], {"a": 1}, {1: "a"}, {"a": None}],
    ids=repr,
)
def test_checked_refuses(wrong):
    with pytest.raises(ValueError) as caught:
        granularity.checked(wrong)
    message = str(caught.value)
    assert message.startswith("`granularity` must be 'variable', 'model', or a dict")
    assert f"Received: granularity={wrong!r}" in message


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "a{2,1}"])
def test_checked_names_a_bad_regular_expression(pattern):
    with pytest.raises(ValueError) as caught:
        granularity.checked({"good/.*": "a", pattern: "b"})
    assert "not a valid regular expression" in str(caught.value)
    assert f"Received: {pattern!r}" in str(caught.value)


# ---- Adasum ------------------------------------------------------------------------------------

SHAPES = [(3, 5), (17,), (40,), (), (6,)]
# Half a unit in the last place, for the one rounding of the result; the coefficients' error is as
# in test_rules.py.
ROUNDING = {tf.float16: 2.0**-11, tf.float32: 2.0**-24, tf.float64: 2.0**-50}
COEFFICIENT_TOLERANCE = 1e-11
DTYPES = [tf.float32, tf.float64, tf.float32, tf.float16, tf.float64]


def gradients_of(replicas):
    """For each replica the gradients of all variables, with a part in common."""
    random = np.random.default_rng(replicas)
    common = [random.standard_normal(shape) for shape in SHAPES]
    return [
        [
            np.asarray(own + random.standard_normal(own.shape)).astype(dtype.as_numpy_dtype)
            for own, dtype in zip(common, DTYPES, strict=True)
        ]
        for _ in range(replicas)
    ]


def assert_adasum_of_groups(combined, gradients, groups):
    """Each group is the oracle's combination of its variables, one behind the other."""
    for group in set(groups):
        members = np.flatnonzero(np.asarray(groups) == group)
        vectors = [
            np.concatenate([np.ravel(own[i]).astype(np.float64) for i in members])
            for own in gradients
        ]
        pieces = np.split(
            oracle.adasum(vectors), np.cumsum([gradients[0][i].size for i in members])[:-1]
        )
        total = sum(np.linalg.norm(vector) for vector in vectors)
        for i, expected in zip(members, pieces, strict=True):
            assert combined[i].dtype == DTYPES[i] and combined[i].shape == SHAPES[i]
            error = np.abs(np.ravel(combined[i]).astype(np.float64) - expected)
            allowed = ROUNDING[DTYPES[i]] * np.abs(expected) + COEFFICIENT_TOLERANCE * total
            assert (error <= allowed).all(), f"variable {i}: excess {np.max(error - allowed)}"


@pytest.mark.parametrize("bucket_bytes", [None, 1])
@pytest.mark.parametrize("replicas", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "of",
    ["variable", "model", {"encoder/.*": "encoder"}, {".*/kernel": "k", ".*/bias": "b"}],
    ids=str,
)
def test_adasum_of_groups_is_adasum_of_their_vectors(backend, of, replicas, bucket_bytes):
    """Several dtypes, so several buckets, and with `bucket_bytes` 1 one for each variable."""
    gradients = gradients_of(replicas)
    groups = granularity.groups(of, PATHS)
    exchange = LocalExchange(Scheme(rules.Adasum(of), replicas))
    combined = aggregate(gradients, exchange, bucket_bytes, RuleApplication(groups))
    assert_adasum_of_groups(combined, gradients, groups)


def test_the_model_as_one_vector_without_a_memory():
    gradients = gradients_of(3)
    exchange = LocalExchange(Scheme(rules.Adasum("model"), 3))
    assert_adasum_of_groups(aggregate(gradients, exchange), gradients, [0] * 5)


def test_the_comparison_above_can_fail():
    gradients = gradients_of(3)
    exchange = LocalExchange(Scheme(rules.Adasum("model"), 3))
    combined = aggregate(gradients, exchange)
    for wrong in ([0, 1, 2, 3, 4], [0, 0, 0, 0, 1]):
        with pytest.raises(AssertionError, match="excess"):
            assert_adasum_of_groups(combined, gradients, wrong)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_number_spoils_its_group_and_no_other(bad):
    of = {"encoder/.*": "encoder"}
    gradients = gradients_of(3)
    gradients[2][1][16] = bad
    exchange = LocalExchange(Scheme(rules.Adasum(of), 3))
    combined = aggregate(
        gradients, exchange, application=RuleApplication(granularity.groups(of, PATHS))
    )
    are_nan = [bool(np.isnan(own.numpy()).all()) for own in combined]
    assert are_nan == [True, True, False, False, False]
    assert all(np.isfinite(own.numpy()).all() for own in combined[2:])


def test_only_adasum_of_variables_works_in_levels():
    assert rules.Adasum("variable").works_in_levels
    assert not rules.Adasum("model").works_in_levels
    assert not rules.Adasum({".*": "all"}).works_in_levels


@pytest.mark.parametrize("of", ["model", {"encoder/.*": "encoder", "head/.*": "head"}], ids=str)
def test_adasum_of_groups_is_saved_and_restored(of):
    rule = rules.Adasum(of)
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(rule))
    assert type(restored) is rules.Adasum and restored.granularity == of
    assert restored.works_in_levels == rule.works_in_levels
    assert repr(restored) == f"Adasum(granularity={of!r})"
