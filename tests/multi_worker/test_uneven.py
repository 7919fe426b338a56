"""Workers whose data ends earlier than that of others: all end together, or all say why not."""

import numpy as np
import pytest
import tensorflow as tf
from scenarios import basics
from scenarios import uneven as scenarios
from support import stacks

UNEVEN = pytest.mark.feature("workers with datasets of different length from a function")


on_two_workers = pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")


@UNEVEN
@on_two_workers
class TestFromFunction:
    @stacks.needs_endless_fit
    @pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
    @pytest.mark.parametrize("batches", [(3, 1), (0, 2)], ids=str)
    def test_the_epoch_ends_with_the_longest(self, group, batches, unknown):
        """The logs are those of all rows; without learning, so that one process can tell."""
        arguments = {"batches": batches, "unknown": unknown}
        results = group.run(scenarios.from_function, timeout=60, **arguments)
        model = scenarios.model_of(tf.distribute.get_strategy())
        parts = [np.concatenate(part) for part in zip(*all_rows(batches), strict=True)]
        difference = model(parts[0]).numpy() - parts[1]
        for actual in results:
            np.testing.assert_allclose(actual["loss"], [np.mean(difference**2)] * 2, rtol=1e-5)
            np.testing.assert_allclose(actual["mae"], [np.abs(difference).mean()] * 2, rtol=1e-5)

    def test_steps_per_epoch_beyond_one_workers_data(self, group):
        arguments = {"batches": (5, 1), "unknown": False, "steps": 2}
        for actual in group.run(scenarios.from_function, timeout=60, **arguments):
            assert np.isfinite(actual["loss"]).all() and len(actual["loss"]) == 2

    def test_custom_loop(self, group):
        """The worker whose data has ended goes on without rows: the step is the other's own."""
        arguments = {"batches": (3, 1), "unknown": False, "loop": True}
        results = group.run(scenarios.from_function, timeout=60, **arguments)
        assert results[0]["rows"].tolist() == [4, 4, 4] * 2
        assert results[1]["rows"].tolist() == [4, 0, 0] * 2
        for name in ("weight0", "weight1"):
            np.testing.assert_array_equal(results[0][name], results[1][name])
            assert np.isfinite(results[0][name]).all()

    def test_infinite_on_one_worker_is_refused_on_all(self, group):
        arguments = {"batches": (3, -3), "unknown": False}
        for actual in group.run(scenarios.from_function, timeout=60, **arguments):
            assert "Received: worker 0: 3; worker 1: infinite" in str(actual["message"])
        group.run(basics.reduce_gradients, rule="adasum")  # they can still talk to each other


def all_rows(batches):
    return [batch for count in batches for batch in scenarios.dataset_of(count).as_numpy_iterator()]


@on_two_workers
@pytest.mark.feature("`steps_per_epoch` beyond the data, generators of different length")
@pytest.mark.keras3_only("`fit` of Keras 2 ends in an error, on all workers")
@pytest.mark.parametrize("steps", [None, 4])
def test_generators_that_end_earlier_on_one_worker(group, steps):
    arguments = {"batches": (5, 2), "steps": steps}
    results = group.run(scenarios.generators, timeout=60, **arguments)
    assert np.isfinite(results[0]["loss"]).all()
    for name in ("loss", "weight0"):
        np.testing.assert_array_equal(results[0][name], results[1][name])


@on_two_workers
@pytest.mark.feature("`steps_per_epoch` beyond the data, generators of different length")
@pytest.mark.keras3_only("Keras 2 logs that data ran out")
def test_steps_per_epoch_beyond_the_data(group):
    """As many steps as one process does."""
    model = scenarios.model_of(tf.distribute.get_strategy())
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(scenarios.dataset_of(3), epochs=2, steps_per_epoch=5, verbose=0)
    for actual in group.run(scenarios.too_many_steps, timeout=60):
        assert actual["iterations"] == int(model.optimizer.iterations.numpy())
        assert actual["finite"]
