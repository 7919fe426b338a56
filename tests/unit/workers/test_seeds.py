"""The seed that worker 0 draws for a shuffle: the user's own random numbers stay as they are."""

import pickle
import random

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.workers.seeds import Seeds
from tf_adasum.workers.workers import Workers


@pytest.fixture(autouse=True)
def unseeded():
    """TensorFlow without a global seed, before and after."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


def alone():
    return Seeds(Workers(0, 1, None, None))


def with_a_colleague():
    """Worker 0 of two; the other one has no global seed and draws 5."""
    return Seeds(Workers(0, 2, lambda own: np.array([own, [0, False, 5]]), None))


def drawn_after(seed, seeds, times=3):
    tf.random.set_seed(seed)
    return [seeds.common() for _ in range(times)]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_users_random_numbers_stay_as_they_are(workers, seed):
    seeds = alone() if workers == 1 else with_a_colleague()
    tf.random.set_seed(seed)
    expected = tf.random.uniform([4]).numpy() if seed is not None else None
    tf.random.set_seed(seed)
    python, numpy = random.getstate(), pickle.dumps(np.random.get_state())
    seeds.common()
    assert random.getstate() == python
    assert pickle.dumps(np.random.get_state()) == numpy
    if seed is not None:
        np.testing.assert_array_equal(tf.random.uniform([4]), expected)


def test_without_a_global_seed_every_seed_is_another():
    first, second = with_a_colleague(), with_a_colleague()
    random.seed(1)  # of no matter
    drawn = drawn_after(None, first)
    random.seed(1)
    assert len({*drawn, *drawn_after(None, second)}) == 6
    assert all(0 <= seed < 2**31 for seed in drawn)


@pytest.mark.parametrize("seed", [0, 7, np.int64(7)], ids=repr)
def test_a_global_seed_makes_them_reproducible(seed):
    seeds = with_a_colleague()
    drawn = drawn_after(seed, seeds)
    assert len(set(drawn)) == 3, "each epoch its own"
    assert drawn_after(8, seeds) != drawn
    assert drawn_after(seed, seeds) == drawn, "seeded again, in the same process"
    assert drawn_after(seed, with_a_colleague()) == drawn, "and as in another one"


def test_there_is_none_where_keras_has_one():
    assert drawn_after(None, alone()) == [None] * 3
    alike = Seeds(Workers(0, 2, lambda own: np.array([own, own]), None))
    assert drawn_after(7, alike) == [None] * 3


def test_a_worker_draws_alone_as_its_global_seed_says():
    def drawn(seed):
        tf.random.set_seed(seed)
        seeds = alone()
        return [seeds.draw() for _ in range(3)]

    assert drawn(7) == drawn(7) != drawn(8)
    assert len({*drawn(None), *drawn(None)}) == 6
