"""The seed that worker 0 draws for a shuffle: the user's own random numbers stay as they are."""

import pickle
import random

import numpy as np
import pytest
import tensorflow as tf

import tf_adasum


@pytest.fixture(autouse=True)
def unseeded():
    """TensorFlow without a global seed, before and after."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(None)


def alone():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


def with_a_colleague(monkeypatch):
    """Worker 0 of two; the other one has no global seed and draws 5."""
    made = alone()
    monkeypatch.setattr(
        made, "_gather_from_workers", lambda numbers: np.array([numbers, [0, False, 5]], np.int64)
    )
    return made


def drawn_after(seed, made, times=3):
    tf.random.set_seed(seed)
    return [made.common_seed() for _ in range(times)]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_users_random_numbers_stay_as_they_are(workers, seed, monkeypatch):
    made = alone() if workers == 1 else with_a_colleague(monkeypatch)
    tf.random.set_seed(seed)
    expected = tf.random.uniform([4]).numpy() if seed is not None else None
    tf.random.set_seed(seed)
    python, numpy = random.getstate(), pickle.dumps(np.random.get_state())
    made.common_seed()
    assert random.getstate() == python
    assert pickle.dumps(np.random.get_state()) == numpy
    if seed is not None:
        np.testing.assert_array_equal(tf.random.uniform([4]), expected)


def test_without_a_global_seed_every_seed_is_another(monkeypatch):
    first, second = with_a_colleague(monkeypatch), with_a_colleague(monkeypatch)
    random.seed(1)  # of no matter
    drawn = drawn_after(None, first)
    random.seed(1)
    assert len({*drawn, *drawn_after(None, second)}) == 6
    assert all(0 <= seed < 2**31 for seed in drawn)


@pytest.mark.parametrize("seed", [0, 7, np.int64(7)], ids=repr)
def test_a_global_seed_makes_them_reproducible(seed, monkeypatch):
    made = with_a_colleague(monkeypatch)
    drawn = drawn_after(seed, made)
    assert len(set(drawn)) == 3, "each epoch its own"
    assert drawn_after(8, made) != drawn
    assert drawn_after(seed, made) == drawn, "seeded again, in the same process"
    assert drawn_after(seed, with_a_colleague(monkeypatch)) == drawn, "and as in another one"


def test_there_is_none_where_keras_has_one(monkeypatch):
    assert drawn_after(None, alone()) == [None] * 3
    made = alone()
    monkeypatch.setattr(made, "_gather_from_workers", lambda numbers: np.array([numbers] * 2))
    assert drawn_after(7, made) == [None] * 3
