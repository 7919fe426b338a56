"""The seed that worker 0 draws for a shuffle, or each worker for itself."""

import random

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.workers.seeds import Seeds
from tf_adasum.workers.workers import Workers

pytestmark = pytest.mark.usefixtures("unseeded")


def new_seeds():
    """The seeds of worker 0; a second one has no global seed and draws 5."""
    return Seeds(Workers(0, 2, lambda own: np.array([own, [0, False, 5]]), None))


def drawn_after(seed, seeds, draw=Seeds.shared_if_needed):
    tf.random.set_seed(seed)
    return [draw(seeds) for _ in range(3)]


@pytest.mark.keras3_only("Keras 2 has no PyDataset")
def test_the_users_generators_stay_as_they_are():
    """Otherwise all workers would draw the same augmentations."""
    from tf_adasum.compat.keras.keras3.py_datasets import _seeded

    before = random.getstate(), np.random.get_state()[1].tolist()
    with _seeded(3):
        random.random(), np.random.rand()
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_without_a_global_seed_every_seed_is_another():
    random.seed(1)  # of no matter
    drawn = drawn_after(None, new_seeds())
    random.seed(1)
    assert len({*drawn, *drawn_after(None, new_seeds())}) == 6
    assert all(0 <= seed < 2**31 for seed in drawn)


@pytest.mark.parametrize("seed", [0, 7, np.int64(7)], ids=repr)
def test_a_global_seed_makes_them_reproducible(seed):
    seeds = new_seeds()
    drawn = drawn_after(seed, seeds)
    assert len(set(drawn)) == 3, "each epoch its own"
    assert drawn_after(8, seeds) != drawn
    assert drawn_after(seed, seeds) == drawn, "seeded again, in the same process"
    assert drawn_after(seed, new_seeds()) == drawn, "and as in another one"


def test_a_worker_draws_alone_as_its_global_seed_says():
    def drawn(seed):
        return drawn_after(seed, Seeds(Workers(0, 1, None, None)), Seeds.draw)

    assert drawn(7) == drawn(7) != drawn(8)
    assert len({*drawn(None), *drawn(None)}) == 6
