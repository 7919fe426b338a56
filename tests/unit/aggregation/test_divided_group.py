"""All-to-alls of classes: no names collide, and every member receives from every other one."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.aggregation.divided_group import DividedGroup, classes_of, pairs_of


def names_collide(workers):
    """Whether two buffers of one worker have a name, as TensorFlow makes it, in common."""
    seen = set()
    for source, target in itertools.product(range(len(workers)), repeat=2):
        name = workers[source], f"{source}{target}"
        if name in seen:
            return True
        seen.add(name)
    return False


@pytest.mark.parametrize(("workers", "devices"), [(2, 12), (2, 13), (3, 16), (2, 32), (12, 11)])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_names_collide(workers, devices, stride):
    worker_of = np.repeat(np.arange(workers), devices)[::stride]
    classes = classes_of(worker_of)
    assert (classes is None) == (not names_collide(worker_of))
    if classes is None:
        return
    pairs = pairs_of(classes)
    assert not any(names_collide(worker_of[members]) for members in pairs)
    met = {pair for members in pairs for pair in itertools.product(members, repeat=2)}
    assert len(met) == len(worker_of) ** 2
    sent = max(sum(len(m) for m in pairs if i in m) for i in range(len(worker_of)))
    assert sent < 2 * len(worker_of)


def test_rows_come_in_the_order_of_the_members():
    classes = classes_of([0] * 12)
    me, size = 7, 12

    class Pair:
        """Member j sends ``10 j + i`` to member i."""

        def __init__(self, members):
            self.members = members

        def all_to_all(self, rows):
            np.testing.assert_array_equal(rows[:, 0], 10 * me + self.members)
            return tf.constant(10 * self.members[:, None] + me)

    pairs = [(members, Pair(members)) for members in pairs_of(classes) if me in members]
    group = DividedGroup(None, np.arange(size), me, pairs)
    received = group.all_to_all(tf.constant(10 * me + np.arange(size)[:, None]))
    np.testing.assert_array_equal(received[:, 0], 10 * np.arange(size) + me)
