"""Gradients that arrive one by one give the combination of the whole tree, see the oracle."""

import numpy as np
import pytest
import tensorflow as tf
from support import oracle

from tf_adasum.aggregation import LocalReductionPlanner, Scheme, aggregate
from tf_adasum.aggregation.partial_results import first_of_blocks, partial_results
from tf_adasum.aggregation.rules import Adasum
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


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        *((1, count) for count in (2, 3, 5, 8, 12, 13)),
        *((2, 3), (2, 4), (2, 6), (2, 13), (3, 4), (3, 7), (4, 3), (5, 5), (6, 2)),
    ],
)
def test_devices_combine_the_whole_tree(devices, count):
    vectors = gradients(devices * count, seed=devices)
    nodes = first_of_blocks(devices, count)
    most = len(nodes) // devices
    rows = []
    for device in range(devices):
        first = device * count
        own = of_device(vectors[first : first + count], first, is_all=devices == 1)
        assert devices > 1 or len(own) == 1
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
