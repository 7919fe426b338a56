"""Gradients that are sent in 16 bits: they are rounded once, and so is their combination."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from support import scheme_oracle
from support.fake_collectives import exchanged, exchanged_arrays
from support.scheme_oracle import gradients_of

from tf_adasum.aggregation import Scheme, rules

MODEL = [(), (5, 7), (1001,), (0,), (17,)]
WIRES = [tf.float16, tf.bfloat16]
# The plan of four replicas, and how many bytes are gathered: none, or those of all buckets.
WAYS = {"shards": ((4,), 0), "gathered": ((4,), 2**40), "two levels": ((2, 2), 0)}


@pytest.fixture(params=WIRES, ids=lambda dtype: dtype.name)
def wire(request):
    return request.param


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def way(request):
    return request.param


def sent_by(way, gradients, wire, rule=None):
    """The result of each replica, the hub and the scheme."""
    plan, all_gather_threshold_bytes = way
    scheme = Scheme(rule or rules.Adasum(), 4, radix_plan=plan, wire_dtype=wire)
    results, hub = exchanged_arrays(
        gradients, scheme, all_gather_threshold_bytes=all_gather_threshold_bytes
    )
    scheme_oracle.assert_same_bits(results)
    return results, hub, scheme


def rounded(gradients, dtype):
    """The gradients as they arrive; TensorFlow casts float64 to 16 bits through float32."""
    return [[g.astype(np.float32).astype(dtype.as_numpy_dtype) for g in own] for own in gradients]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rule", [rules.Adasum(), rules.Sum()], ids=repr)
def test_rounds_gradients_and_result_once(dtype, rule, wire, way):
    gradients = gradients_of(MODEL, 4, dtype)
    results, _, scheme = sent_by(way, gradients, wire, rule)
    arrived = rounded(gradients, wire)
    wanted = scheme_oracle.combined(arrived, scheme)
    for actual, one, own in zip(results[0], wanted, zip(*arrived, strict=True), strict=True):
        assert actual.dtype == dtype.as_numpy_dtype
        assert (actual.astype(wire.as_numpy_dtype).astype(actual.dtype) == actual).all()
        levels = len(scheme.radix_plan)
        scheme_oracle.assert_close(actual, one, own, dtype=wire.as_numpy_dtype, levels=levels)


@pytest.mark.parametrize(("own_dtype", "wire"), [WIRES, WIRES[::-1]], ids=["float16", "bfloat16"])
def test_leaves_gradients_of_16_bits_as_they_are(own_dtype, wire, way):
    """The other 16-bit type cannot hold them: its precision or its range is too small."""
    scale = own_dtype.as_numpy_dtype(2.0**100 if own_dtype == tf.bfloat16 else 1)
    gradients = [[scale * g for g in own] for own in gradients_of(MODEL, 4, own_dtype)]
    with_wire, without = (sent_by(way, gradients, dtype)[0] for dtype in (wire, None))
    scheme_oracle.assert_same_bits([*with_wire, *without])


def test_sends_half_the_bytes(wire, way, sums_by_a_ring):
    gradients = gradients_of([(960,)], 4)  # no padding in either dtype
    halves, whole = (sent_by(way, gradients, dtype)[1].sent[0] for dtype in (wire, None))
    for kind in whole:  # the Gram matrices are sent in full precision
        assert whole[kind] == (1 if kind == "all_reduce" else 2) * halves[kind]


@pytest.mark.parametrize(
    ("rule", "way"),
    [
        *itertools.product([rules.Adasum(), rules.Sum()], WAYS.values()),
        (rules.AdaCons(), WAYS["shards"]),
        (rules.AdaCons(), WAYS["gathered"]),
    ],
    ids=repr,
)
@pytest.mark.parametrize("replica", [0, 3])
def test_what_float16_cannot_hold_never_becomes_finite(rule, replica, way):
    gradients = gradients_of([(50,)], 4)
    gradients[replica][0][7] = 1e5  # the largest number is 65504
    (result,), *_ = sent_by(way, gradients, tf.float16, rule)[0]
    assert not np.isfinite(result[7])
    assert not rule.needs_gram or not np.isfinite(result).any()
    (result,), *_ = sent_by(way, gradients, tf.bfloat16, rule)[0]
    assert np.isfinite(result).all()


@pytest.mark.parametrize("averaged", [1, 2])
def test_sparse_rows_are_rounded_when_they_are_sent(wire, averaged):
    """Each row once, after its sum; the result is not sent, and not rounded to the wire dtype."""
    gradients = gradients_of([(3, 4)], 4)
    slices = [[tf.IndexedSlices(own, tf.constant([0, 1, 2]), [3, 4])] for (own,) in gradients]
    scheme = Scheme(rules.Adasum(), 4, averaged, wire_dtype=wire)
    results, hub = exchanged(slices, scheme)
    rows = [[combined.values.numpy()] for (combined,) in results]
    scheme_oracle.assert_same_bits(rows)
    arrived = rounded(gradients, wire)
    (wanted,) = scheme_oracle.combined(arrived, scheme)
    assert rows[0][0].dtype == np.float32
    scheme_oracle.assert_close(rows[0][0], wanted, [own for (own,) in arrived])
    # 1 count and 3 indices of 8 bytes, 12 numbers of 2 bytes, to three others.
    assert hub.sent[0] == {"all_gather": 3 * (8 + 24 + 24)}
