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
def test_whose_backup_it_is_and_how_good(group, tmp_path):
    arguments = {"kind": "array", "place": "end of an epoch", "folder": str(tmp_path / "{rank}")}
    group.run(scenarios.train, stage="killed", **arguments)
    names = ["epoch-1-batch-0.backup", "epoch-2-batch-0.backup"]
    folders = [tmp_path / rank / "broken" for rank in ("0", "1")]
    assert sorted(path.name for path in folders[0].iterdir()) == names
    newest = folders[0] / names[1]
    newest.write_bytes(newest.read_bytes()[:-1])
    folders[0].rename(folders[1])  # worker 1 becomes the one with the backups
    own, other = group.run(scenarios.train, stage="resumed", **arguments)
    scenarios.assert_same_state(own, other)
    assert own["epochs"].tolist() == other["epochs"].tolist() == [1, 2]
    assert str(own["said"]) == "" and f"{names[1]} is cut off" in str(other["said"])
