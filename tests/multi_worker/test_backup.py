"""A training that is broken off continues as if it had not been, from one file, whoever has it."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

import numpy as np
from scenarios import backup as scenarios

slow = pytest.mark.slow
on_two_workers = pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")


def assert_same(actual, expected, without=("epochs", "batches", "warnings", "log")):
    """Bit for bit."""
    names = [name for name in expected if not name.startswith(without)]
    assert len(names) > 10
    for name in names:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def backups_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("group", "options"),
    [
        ("1x2", {"kind": "delta"}),
        ("2x1", {"kind": "adam"}),
        ("2x1", {"kind": "delta"}),
        pytest.param("2x1", {"kind": "loss_scale"}, marks=slow),
        pytest.param("2x2", {"kind": "delta"}, marks=slow),
        pytest.param("2x1", {"steps_per_execution": 2}, marks=slow),
        # Keras's own callback, on worker 0 only.
        pytest.param("2x1", {"kind": "adacons", "plain": True, "only_worker_0": True}, marks=slow),
    ],
    indirect=["group"],
    ids=str,
)
def test_goes_on_within_an_epoch_as_unbroken(group, options, tmp_path):
    """Backups after batches 5 and 10, or 4 and 8; broken off after the 11th, or the 10th."""
    steps = options.get("steps_per_execution", 1)
    at, first, save_freq = ((1, 3), 2, 4) if steps > 1 else ((1, 4), 4, 5)
    training = {name: options[name] for name in ("kind", "steps_per_execution") if name in options}
    folder, training = str(tmp_path / "unbroken"), training | {"save_freq": save_freq}
    expected = group.run(scenarios.train_unbroken, folder=folder, **training)
    folder = str(tmp_path / ("{rank}" if "only_worker_0" in options else "broken"))
    options = {"folder": folder, "at": at, "save_freq": save_freq, **options}
    results = group.run(scenarios.break_off_and_go_on, **options)
    for actual, other in zip(results, expected, strict=True):
        batches = [*range(100 + first + steps - 1, 106, steps), *range(200 + steps - 1, 206, steps)]
        assert actual["batches"].tolist() == batches
        assert_same(actual, other)
        for name in (name for name in other if name.startswith("log")):
            np.testing.assert_array_equal(actual[name], other[name][-len(actual["epochs"]) :], name)
        assert "backup" not in str(actual["warnings"]).lower()
    assert backups_in(tmp_path) == []  # the training has ended


@on_two_workers
def test_whose_backup_it_is_and_how_good(group, tmp_path):
    group.run(scenarios.break_off, folder=str(tmp_path / "0"), at=[2, 1])
    names = ["epoch-1-batch-0.backup", "epoch-2-batch-0.backup"]
    assert backups_in(tmp_path / "0") == names
    newest = tmp_path / "0" / names[1]
    newest.write_bytes(newest.read_bytes()[:-1])
    # Worker 1 becomes the one with the backups.
    (tmp_path / "0").rename(tmp_path / "1")
    options = {"folder": str(tmp_path / "{rank}"), "epochs": 2, "delete_checkpoint": False}
    own, other = group.run(scenarios.resume, **options)
    assert_same(other, own)
    assert own["epochs"].tolist() == other["epochs"].tolist() == [1]
    assert own["warnings"] == ""
    assert "epoch-2-batch-0.backup is cut off" in str(other["warnings"])


@on_two_workers
def test_a_second_training_starts_at_the_beginning(group, tmp_path):
    results = group.run(
        scenarios.second_fit_starts_at_the_beginning, folder=str(tmp_path / "backup")
    )
    for each in results:
        assert each["0"].tolist() == each["1"].tolist() == [0, 1]
    assert not results[0]["left"]  # worker 0 removes the backups; worker 1 does not wait for it
