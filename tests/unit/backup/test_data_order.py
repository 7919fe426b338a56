"""The seeds of passes; the order of a resumed training is in `test_resuming.py`."""

import random

from tf_adasum.backup.data_order import DataOrder


def seeds_of(order, epochs):
    """The seeds of a training that begins a pass in each of these epochs."""
    seeds = []
    for epoch in epochs:
        order.epoch = epoch
        seeds.append(order.seed_of_pass(has_ended=False))
    return seeds


def test_each_pass_has_a_seed_of_its_own_which_no_global_generator_draws():
    before = random.getstate()
    seeds = seeds_of(DataOrder(5), range(4))
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**31 for seed in seeds)
    assert not set(seeds) & set(seeds_of(DataOrder(6), range(4)))
    assert DataOrder(5).seed_of_pass(False) != DataOrder(5).seed_of_pass(True)
    assert random.getstate() == before


def test_a_resumed_training_has_the_seeds_of_the_interrupted_one():
    unbroken, within = seeds_of(DataOrder(5), range(4)), DataOrder(5, batch=3, position=3, began=2)
    assert seeds_of(DataOrder(5), range(2, 4)) == unbroken[2:], "after an epoch"
    within.epoch = 3  # the pass has begun in an earlier epoch
    assert within.seed_of_pass(has_ended=False) == unbroken[2]
    assert within.seed_of_pass(has_ended=False) == unbroken[3]


def test_the_start_is_taken_once():
    order = DataOrder(5, batch=2, position=7, began=0)
    assert [order.take_start() for _ in range(2)] == [(2, 7), (0, 0)]
