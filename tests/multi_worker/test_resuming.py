"""A killed training resumes with every row of its epoch once, and with the same bits."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

import numpy as np
from scenarios import on
from scenarios import resuming as scenarios
from support.keras_versions import needs_keras

# `make test` resumes each kind of data, and one kind at each place; `make test-slow` does the rest.
CASES = [
    pytest.param(kind, place, marks=[pytest.mark.always] * is_chosen)
    for kind in scenarios.DATA
    for place in scenarios.PLACES
    for is_chosen in [place == "later epoch" or kind == "shuffled, global seed"]
]
PLACE = "later epoch"
OPTIMIZERS = [
    ("1x2", PLACE, {"training": "delta"}),
    ("2x1", PLACE, {"training": "adam"}),
    ("2x1", PLACE, {"training": "delta"}),
    ("2x1", PLACE, {"training": "adascale"}),
    ("2x1", PLACE, {"training": "loss_scale"}),
    pytest.param(
        *("2x1", PLACE, {"training": "several"}),
        marks=needs_keras("3.15", "it has no MultiOptimizer"),
    ),
    ("2x2", PLACE, {"training": "delta"}),
    ("2x1", "first epoch", {"training": "adam", "steps_per_execution": 2}),
    ("2x1", PLACE, {"training": "adacons", "is_keras": True}),
]


def stages(group, folder, kind, place, **options):
    """The results of the unbroken, the killed and the resumed training."""
    arguments = {"kind": kind, "place": place, "folder": str(folder), **options}
    names = ("unbroken", "killed", "resumed")
    return [group.run(scenarios.train, stage=stage, **arguments) for stage in names]


@on("2x1")
@pytest.mark.parametrize(("kind", "place"), CASES)
def test_resumes_with_the_same_rows(group, tmp_path, kind, place):
    results = stages(group, tmp_path, kind, place)
    scenarios.assert_as_unbroken(kind, place, *results)


@pytest.mark.parametrize(("group", "place", "options"), OPTIMIZERS, indirect=["group"], ids=str)
def test_every_optimizer_resumes_as_unbroken(group, tmp_path, place, options):
    results = stages(group, tmp_path, "array", place, **options)
    scenarios.assert_as_unbroken("array", place, *results)
    unbroken, _, resumed = results
    for one, other in zip(unbroken, resumed, strict=True):
        for name in (name for name in one if name.startswith("log ")):
            np.testing.assert_array_equal(other[name], one[name][-len(other["epochs"]) :], name)
        assert "backup" not in str(other["said"]).lower()


@on("2x1")
@pytest.mark.parametrize(
    ("place", "ranks", "steps_per_execution"),
    [
        pytest.param("validation", [1], 1, marks=pytest.mark.always),
        ("first epoch", [0], 1),
        ("later epoch", [0, 1], 1),
        ("first epoch", [1], 2),
    ],
)
def test_a_signal_to_any_worker_stops_all(group, tmp_path, place, ranks, steps_per_execution):
    """At the same place, after a backup; the next start resumes with the same bits."""
    options = {"training": "delta", "steps_per_execution": steps_per_execution}
    results = stages(group, tmp_path, "array", place, signalled=ranks, **options)
    for before, until, after in zip(*results, strict=True):
        assert until["code"] == 75 and 0 < len(until["rows"]) < len(before["rows"])
        np.testing.assert_array_equal(
            np.concatenate([until["rows"], after["rows"]]), before["rows"]
        )
        scenarios.assert_same_state(after, before)
