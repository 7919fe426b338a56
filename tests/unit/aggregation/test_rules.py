"""Rules and `adasum`, against the NumPy oracle on the vectors; test_levels.py has `aggregate`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import oracle
from support.all_pairs import BACKENDS, parametrize_all_pairs
from support.scheme_oracle import COEFFICIENT_TOLERANCE, COMBINE, DTYPES, gradients_of

import tf_adasum
from tf_adasum.aggregation import rules
from tf_adasum.aggregation.rules import AdaCons, Adasum, Mean, Sum


def assert_adasum(actual, own):
    total = sum(np.linalg.norm(np.ravel(gradient).astype(np.float64)) for gradient in own)
    wanted = oracle.adasum(own)
    assert actual.dtype == own[0].dtype and np.isfinite(wanted).all()
    oracle.assert_rounded(actual, wanted, COEFFICIENT_TOLERANCE * total)


# ---- cancellation; see also test_nested.py ----------------------------------------------------


def test_inner_products_obey_cauchy_schwarz():
    # No vectors have this matrix; rounding can produce it, with tiny p and q.
    gram = tf.constant([[[1.0, 10.0], [10.0, 1.0]]], tf.float64)
    np.testing.assert_allclose(Adasum().coefficients(gram), [[0.5, 0.5]], rtol=1e-15)


# ---- naming and saving rules -------------------------------------------------------------------


def test_get_returns_the_rule():
    own = {"adasum": Adasum(), "adacons": AdaCons(0.99, "model", True)}
    own |= {"mean": Mean(), "sum": Sum()}
    assert {*own} == {*rules._BY_NAME} and {*map(type, own.values())} <= COMBINE.keys()
    for name, rule in own.items():
        assert repr(rules.get(name)) == repr(rules.get(name.upper())) == repr(rule)
        assert rules.get(rule) is rule


@pytest.mark.parametrize(
    "rule",
    [
        Adasum({"encoder/.*": "encoder", "head/.*": "head"}),
        Mean(),
        Sum(),
        AdaCons(0.5, "variable", True),
    ],
    ids=repr,
)
def test_rules_are_saved_and_restored(rule):
    saved = keras.saving.serialize_keras_object(rule)
    assert saved["registered_name"] == f"tf_adasum>{type(rule).__name__}"
    from_repr = eval(repr(rule), vars(rules).copy())
    for restored in (keras.saving.deserialize_keras_object(saved), from_repr):
        assert type(restored) is type(rule) and restored.get_config() == rule.get_config()


# ---- adasum() ----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_graph", [False, True])
def test_adasum_of_nested_structures_with_several_dtypes(backend, in_graph):
    halves = gradients_of([(2, 3), ()], 3, tf.float16)
    doubles = gradients_of([(7,)], 3, tf.float64)
    values = [
        {"layer": [kernel, {"bias": bias}], "scale": (scale,)}
        for (kernel, bias), (scale,) in zip(halves, doubles, strict=True)
    ]
    combine = tf.function(tf_adasum.adasum) if in_graph else tf_adasum.adasum
    combined = combine(tf.nest.map_structure(tf.constant, values))
    tf.nest.assert_same_structure(combined, values[0])
    by_leaf = zip(*map(tf.nest.flatten, values), strict=True)
    for leaf, own in zip(tf.nest.flatten(combined), by_leaf, strict=True):
        assert_adasum(leaf, own)


def test_adasum_of_scalars_numbers_and_generators(backend):
    # On one axis all numbers are parallel: (a + b) / 2.
    assert tf_adasum.adasum([2.0, 4.0]).numpy() == 3.0
    assert tf_adasum.adasum(tf.constant(x) for x in (2.0, 4.0)).numpy() == 3.0
    assert tf_adasum.adasum([[1.0, 0.0]])[0].numpy() == 1.0


ONES = tf.ones([2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "`values` must be a list .* Received: values=None"),
        ([], r"at least one tensor. Received: values=\[\]"),
        ([[ONES], (ONES,)], "must have the same structure.*same nested structure"),
        ([ONES, tf.ones([3])], r"float32\[2\] in values\[0\], float32\[3\] in values\[1\]"),
        ([tf.ones([2], tf.int32)] * 2, "Received: gradient 0 with dtype int32"),
    ],
)
def test_adasum_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        tf_adasum.adasum(values)


def test_adasum_is_compiled_by_xla(backend):
    gradients = gradients_of([(), (1,), (17,), (3, 5), (18011,), ()], 3)
    compiled = tf.function(tf_adasum.adasum, jit_compile=True)(gradients)
    for one, wanted in zip(compiled, tf_adasum.adasum(gradients), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-6)


@parametrize_all_pairs(backend=BACKENDS, dtype=DTYPES, replicas=[2, 3, 4, 5])
def test_zero_tiny_and_huge_gradients(backend, dtype, replicas):
    # Squares of float64 have to be normal numbers and finite; the other types are squared in
    # float64, and stay clear of their own subnormals, which stock TensorFlow flushes to zero.
    tiny, huge = {
        tf.float16: (2.0**-10, 2.0**12),
        tf.bfloat16: (2.0**-100, 2.0**100),
        tf.float32: (2.0**-100, 2.0**100),
        tf.float64: (2.0**-230, 2.0**490),
    }[dtype]
    zero, correlated = [(0,), (0, 1), (1, 0), (1, 1, 0)], gradients_of([(40,)], replicas, dtype)
    for pattern in (*zero, (tiny,), (huge,), (tiny, huge), (huge, tiny, tiny)):
        scales = (pattern * replicas)[:replicas]
        own = [
            gradient * gradient.dtype.type(scale)
            for (gradient,), scale in zip(correlated, scales, strict=True)
        ]
        assert_adasum(tf_adasum.adasum(own), own)
