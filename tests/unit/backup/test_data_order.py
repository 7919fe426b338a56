"""DataOrder: a resumed training passes through its data in the order of an unbroken one."""

import random

from tf_adasum.backup.data_order import DataOrder


def seeds_of(order, epochs):
    """What a training asks that begins each of these epochs with a pass of its own."""
    seeds = []
    for epoch in epochs:
        order.epoch = epoch
        seeds.append(order.seed_of_pass(has_ended=False))
    return seeds


def test_each_pass_has_a_seed_of_its_own():
    seeds = seeds_of(DataOrder(5), range(4))
    assert len(set(seeds)) == 4 and all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == seeds_of(DataOrder(5), range(4)), "and the same ones another time"
    assert not set(seeds) & set(seeds_of(DataOrder(6), range(4)))


def test_the_users_random_numbers_stay_as_they_are():
    before = random.getstate()
    seeds_of(DataOrder(5), range(2))
    assert random.getstate() == before


def test_resumed_after_an_epoch():
    assert seeds_of(DataOrder(5), range(2, 4)) == seeds_of(DataOrder(5), range(4))[2:]


def test_resumed_within_an_epoch_the_pass_is_the_one_that_was_interrupted():
    unbroken = seeds_of(DataOrder(5), range(4))
    resumed = DataOrder(5, batch=3, position=3, began=2)
    assert seeds_of(resumed, range(2, 4)) == unbroken[2:]


def test_a_pass_of_several_epochs():
    order = DataOrder(5)
    order.epoch = 0
    first = order.seed_of_pass(has_ended=False)
    order.epoch = 2  # the data end within the third epoch, and begin again
    second = order.seed_of_pass(has_ended=True)
    assert order.began == 3 and second != first
    # Broken off in the fourth epoch, in the pass that has begun with it.
    resumed = DataOrder(5, batch=1, position=5, began=order.began)
    resumed.epoch = 3
    assert resumed.seed_of_pass(has_ended=False) == second
    # The next pass is again another one.
    order.epoch = resumed.epoch = 5
    assert order.seed_of_pass(has_ended=True) == resumed.seed_of_pass(has_ended=True)


def test_the_start_is_taken_once():
    order = DataOrder(5, batch=2, position=7, began=0)
    assert order.take_start() == (2, 7)
    assert order.take_start() == (0, 0)
    assert DataOrder(5).take_start() == (0, 0)
