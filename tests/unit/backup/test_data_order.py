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


def test_earlier_passes_are_taken_once():
    order = DataOrder(5, {"passes": 3})
    assert [order.take_passes(), order.take_passes(), order.passes_ahead] == [3, None, None]
