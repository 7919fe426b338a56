"""A replica without rows contributes nothing, and nothing becomes NaN."""

import numpy as np
import pytest
from scenarios import empty_replicas as scenarios
from scenarios import on
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
            if not name.startswith(("slot", "begin", "end")):
                np.testing.assert_array_equal(value, results[0][name], name)
    if "delta" in optimizer:  # the first replica alone has a row in the last step
        first, last = results[0], results[-1]
        assert (first["end 0.0"] != first["begin 0.0"]).any()
        ends = [n for n in last if n.startswith("end") and n.endswith(f".{group.devices - 1}")]
        for name in ends:
            np.testing.assert_array_equal(last[name], last[name.replace("end", "begin")], name)
