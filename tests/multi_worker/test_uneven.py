"""Workers whose data ends earlier than others': all end together, or all raise the same error."""

import numpy as np
import pytest
import tensorflow as tf
from scenarios import basics, on
from scenarios import uneven as scenarios
from support import keras_versions
from support.pace import PACE


@on("2x1")
class TestFromFunction:
    @keras_versions.needs_endless_fit
    @pytest.mark.parametrize("batches", [(3, 1), (0, 2)], ids=str)
    def test_the_epoch_ends_with_the_longest(self, group, batches):
        """The logs are those of all rows: without learning one process can compute them."""
        model = scenarios.model_of(tf.distribute.get_strategy())
        rows = [row for count in batches for row in scenarios.dataset_of(count).unbatch()]
        x, y = (np.stack(part) for part in zip(*rows, strict=True))
        difference = model(x).numpy() - y
        for unknown in (False, True):
            for actual in group.run(
                scenarios.from_function, timeout=60, batches=batches, unknown=unknown
            ):
                np.testing.assert_allclose(actual["loss"], [np.mean(difference**2)] * 2, rtol=1e-5)
                np.testing.assert_allclose(actual["mae"], [abs(difference).mean()] * 2, rtol=1e-5)

    def test_steps_per_epoch_beyond_one_workers_data(self, group):
        for actual in group.run(scenarios.from_function, timeout=60, batches=(5, 1), steps=2):
            assert np.isfinite(actual["loss"]).all() and len(actual["loss"]) == 2

    def test_custom_loop(self, group):
        """The worker whose data has ended takes steps without rows."""
        own, other = group.run(scenarios.rows_of_loop, timeout=60, batches=(3, 1))
        assert own["rows"].tolist() == [4, 4, 4] * 2
        assert other["rows"].tolist() == [4, 0, 0] * 2

    def test_infinite_on_one_worker_is_refused_on_all(self, group):
        for actual in group.run(scenarios.infinite_on_one, timeout=60):
            assert str(actual["message"]).startswith("ValueError: ")
            assert "Received: worker 0: 3; worker 1: infinite" in str(actual["message"])
        group.run(basics.reduce_gradients, rule="adasum")  # they can still communicate


# The call, the kind of data, the batches of each worker, the steps, `steps_per_execution`; and what
# the error shows.
REFUSED = [
    ("fit", "arrays", (8, 6), None, 1, "32 rows (8 batches); worker 1: 24 rows (6 batches)"),
    ("evaluate", "arrays", (0, 3), None, 1, "0: 0 rows (0 batches); worker 1: 12 rows (3 batches)"),
    ("fit", "known cardinality", (8, 6), None, 1, "worker 0: 8; worker 1: 6"),
    ("fit", "PyDataset", (8, 6), None, 1, "worker 0: 8; worker 1: 6"),
    ("fit", "generator", (5, 2), None, 1, "worker 0: more than 2 batches; worker 1: 2 batches"),
    ("fit", "generator", (5, 2), 4, 1, "worker 0: more than 2 batches; worker 1: 2 batches"),
    ("fit", "generator", (5, 3), None, 2, "more than 2 batches; worker 1: 2 to 3 batches"),
    ("evaluate", "unknown cardinality", (0, 2), None, 1, "0 batches; worker 1: more than 0"),
    ("predict", "unknown cardinality", (3, 2), None, 1, "more than 2 batches; worker 1: 2 batches"),
]


@on("2x1")
@pytest.mark.keras3_only("`fit` of Keras 2 ends in an error, on all workers")
@pytest.mark.slow
def test_data_shorter_on_one_worker_are_refused_on_all(group):
    own, other = group.run(scenarios.refused, cases=[case[:-1] for case in REFUSED])
    problems = {}
    for index, (*case, shown) in enumerate(REFUSED):
        text = str(own[f"text{index}"])
        is_refused = text.startswith("ValueError: ") and shown in text
        if not is_refused or other[f"text{index}"] != text or own[f"seconds{index}"] > 10 * PACE:
            problems[str(case)] = [text, str(other[f"text{index}"])]
    assert not problems
    group.run(basics.reduce_gradients, rule="adasum")  # they can still communicate
