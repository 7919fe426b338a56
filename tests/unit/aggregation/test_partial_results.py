"""Gradients that arrive one by one give the combination of the whole tree, see the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from support import oracle

from tf_adasum.aggregation import LocalReductionPlanner, Scheme, aggregate
from tf_adasum.aggregation.partial_results import (
    RunningSum,
    blocks_of,
    check_rule,
    first_of_blocks,
    partial_results,
)
from tf_adasum.aggregation.rules import AdaCons, Adasum, AggregationRule, Mean, Sum
from tf_adasum.aggregation.rules.adasum import AdasumOfNodes

WIDTH = 7


def gradients(count, seed=0):
    """[count, 2, WIDTH]: two variables, with a part in common."""
    random = np.random.RandomState(seed)
    return random.normal(size=[count, 2, WIDTH]) + random.normal(size=[2, WIDTH])


def of_device(vectors, first, is_all):
    """The blocks that are left of the gradients of one device."""
    results = partial_results(Adasum(), [0, 1], first, len(vectors))
    nodes = None
    *others, last = [[tf.constant(each) for each in own] for own in vectors]
    for number, own in enumerate(others, start=first):
        nodes = results.placed(own, tf.constant(number), nodes)
    return results.blocks(last, nodes, is_all)


@pytest.mark.parametrize(("first", "count"), [(0, 8), (3, 6), (5, 3), (7, 1), (12, 12), (9, 23)])
def test_blocks_are_aligned_and_cover_all(first, count):
    covered = [
        (number << level) + offset
        for level, number in blocks_of(first, count)
        for offset in range(1 << level)
    ]
    assert covered == list(range(first, first + count))
    for (a, i), (b, j) in zip(blocks_of(first, count), blocks_of(first, count)[1:], strict=False):
        assert (a, i ^ 1) != (b, j), "neighbours that form a block are combined"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8, 12, 13])
def test_one_device_combines_the_whole_tree(count):
    vectors = gradients(count)
    (combined,) = of_device(vectors, 0, is_all=True)
    for variable in range(2):
        expected = oracle.adasum(vectors[:, variable])
        np.testing.assert_allclose(combined[variable], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("devices", "count"), [(2, 4), (3, 4), (4, 3), (2, 6), (2, 3), (5, 5), (3, 7), (6, 2), (2, 13)]
)
def test_several_devices_combine_the_same_tree(devices, count):
    vectors = gradients(devices * count, seed=devices)
    nodes = first_of_blocks(devices, count)
    most = len(nodes) // devices
    rows = []
    for device in range(devices):
        first = device * count
        own = of_device(vectors[first : first + count], first, is_all=False)
        rows += [*own, *[[tf.zeros([WIDTH], tf.float64)] * 2] * (most - len(own))]
    scheme = Scheme(AdasumOfNodes(nodes, devices * count, "variable"), len(rows))
    combined = aggregate(rows, LocalReductionPlanner(scheme))
    for variable in range(2):
        expected = oracle.adasum(vectors[:, variable])
        np.testing.assert_allclose(combined[variable], expected, rtol=1e-10)


def test_memory_is_logarithmic():
    for count in (2, 8, 32, 33, 100):
        for first in (0, count, 5 * count):
            slots = partial_results(Adasum(), [0], first, count).slots
            is_aligned = count & (count - 1) == 0
            assert len(slots) <= (1 if is_aligned else 2) * np.ceil(np.log2(count))


def test_linear_rules_add():
    results = partial_results(Sum(), [0], 0, 3)
    assert isinstance(results, RunningSum)
    nodes = results.placed([tf.constant(1.0)], 0, None)
    nodes = results.placed([tf.constant(2.0)], 1, nodes)
    ((total,),) = results.blocks([tf.constant(4.0)], nodes, is_all=False)
    assert float(total) == 7


def test_rules_that_need_all_gradients_are_refused():
    class Own(AggregationRule):
        def coefficients(self, gram):
            return tf.ones(tf.shape(gram)[:2], tf.float64)

    for rule in (Adasum(), Mean(), Sum(), Adasum(granularity="model")):
        check_rule(rule)
    for rule in (AdaCons(), Own()):
        with pytest.raises(ValueError, match=type(rule).__name__):
            check_rule(rule)
