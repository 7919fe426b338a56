"""A replica without rows contributes nothing, and nothing becomes NaN."""

import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import empty_replicas as scenarios
from support import keras_versions

KERAS_3 = pytest.mark.keras3_only("a tracker of Keras 2 takes the NaN")
ACCUMULATE = keras_versions.needs_accumulation
# Every rule, optimizer and way to train once.
CASES = [
    ("adasum", "momentum", "fit"),
    ("adasum of the model", "momentum", "fit"),
    ("adacons of the paper", "momentum", "executions"),
    ("adacons", "momentum", "fit"),
    pytest.param("sum", "momentum", "own step", marks=KERAS_3),
    ("mean", "momentum", "unbuilt"),
    ("adasum", "momentum", "eagerly"),
    ("adasum", "adam", "fit"),
    ("adasum", "ema", "fit"),
    pytest.param("adasum", "accumulate", "fit", marks=ACCUMULATE),
    ("adasum", "scaled", "fit"),
    ("adasum", "lamb", "fit"),
    ("mean", "adascale", "fit"),
    pytest.param("mean", "adascale accumulate", "fit", marks=ACCUMULATE),
    ("adasum", "delta", "fit"),
    ("adasum", "delta of nadam", "fit"),
    ("adasum", "delta of 2", "fit"),
]


@on("1x2", "2x2")
@pytest.mark.parametrize(("rule", "optimizer", "fit_mode"), CASES, ids=lambda name: name)
def test_replicas_stay_the_same_and_nothing_becomes_nan(group, rule, optimizer, fit_mode):
    results = group.run(scenarios.fit, rule=rule, optimizer=optimizer, fit_mode=fit_mode)
    # After each step, or the two executions of each epoch, and of several workers at the start.
    assert results[0]["checks"] == (4 if fit_mode == "executions" else 6) + (group.workers > 1)
    for actual in results:
        for name, value in actual.items():
            assert np.isfinite(value).all(), name
            if not name.startswith("slot"):
                np.testing.assert_array_equal(value, results[0][name], name)


@on("1x2", "2x1")
@pytest.mark.parametrize("optimizer", ["delta", "delta of 2"])
@pytest.mark.slow
def test_local_optimizers_rest(group, optimizer):
    results = group.run(scenarios.steps_of_loop, optimizer=optimizer)
    slots = [n[2:] for n in results[0] if n.startswith("0 ") and keras_versions.is_slot(n)]
    assert slots
    for name in slots:
        before, after = (
            np.concatenate([actual[f"{step} {name}"] for actual in results]) for step in (0, 1)
        )
        assert (after[0] != before[0]).any()
        np.testing.assert_array_equal(after[1:], before[1:])


@on("1x2", "2x2")
@pytest.mark.keras3_only("TensorFlow's kernels fail there")
@pytest.mark.slow
def test_convolutions_and_pooling_without_rows(group):
    """As one process, up to rounding: TensorFlow's kernels for CPUs would end the process."""
    results = group.run(scenarios.train_convolutions)
    assert_close(results, scenarios.train_convolutions(None), rtol=1e-4, atol=1e-6)
