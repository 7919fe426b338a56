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


def continues_as_unbroken(group, tmp_path, at, first, per_epoch=6, **options):
    """Break off after a batch; expect the state and the logs of an unbroken training.

    Args:
        group: the workers.
        tmp_path: an empty folder.
        at: the epoch and the batch after which it is broken off.
        first: the epoch and the batch with which it continues.
        per_epoch: batches in an epoch.
        options: of `scenarios.break_off_and_go_on`.
    """
    unbroken = {
        name: value for name, value in options.items() if name not in ("plain", "only_worker_0")
    }
    expected = group.run(scenarios.train_unbroken, folder=str(tmp_path / "unbroken"), **unbroken)
    folder = tmp_path / ("{rank}" if "only_worker_0" in options else "broken")
    steps_per_execution = options.get("steps_per_execution", 1)
    batches = [
        100 * epoch + number + steps_per_execution - 1
        for epoch in range(first[0], scenarios.EPOCHS)
        for number in range(first[1] if epoch == first[0] else 0, per_epoch, steps_per_execution)
    ]
    results = group.run(scenarios.break_off_and_go_on, folder=str(folder), at=at, **options)
    for actual, other in zip(results, expected, strict=True):
        assert actual["batches"].tolist() == batches
        assert_same(actual, other)
        for name in (name for name in other if name.startswith("log")):
            np.testing.assert_array_equal(actual[name], other[name][-len(actual["epochs"]) :], name)
        assert "backup" not in str(actual["warnings"]).lower()
    assert backups_in(tmp_path) == []  # the training has ended


class TestGoingOn:
    @pytest.mark.parametrize(
        ("group", "kind"),
        [
            ("1x2", "delta"),
            ("2x1", "adam"),
            ("2x1", "delta"),
            pytest.param("2x1", "loss_scale", marks=slow),
            pytest.param("2x2", "delta", marks=slow),
        ],
        indirect=["group"],
    )
    def test_within_an_epoch(self, group, kind, tmp_path):
        # Backups after batches 5 and 10; broken off after the 11th.
        continues_as_unbroken(group, tmp_path, (1, 4), (1, 4), kind=kind, save_freq=5)

    @pytest.mark.parametrize(
        ("group", "at", "first", "options"),
        [
            ("1x2", (1, 1), (1, 1), {"data": "steps", "per_epoch": 4, "save_freq": 5}),
            ("1x2", (1, 1), (1, 1), {"data": "shuffled steps", "per_epoch": 2, "save_freq": 3}),
            ("2x1", (1, 1), (1, 1), {"data": "shuffled", "save_freq": 7}),
            ("2x1", (1, 3), (1, 2), {"steps_per_execution": 2, "save_freq": 4}),
            pytest.param(
                "1x2", (2, 1), (2, 0), {"data": "shuffled steps", "per_epoch": 2}, marks=slow
            ),
            # Keras's own callback, with one folder for all workers or on worker 0 only.
            ("2x1", (2, 1), (2, 0), {"plain": True}),
            (
                "2x1",
                (1, 4),
                (1, 4),
                {"kind": "adacons", "plain": True, "only_worker_0": True, "save_freq": 5},
            ),
        ],
        indirect=["group"],
        ids=str,
    )
    @pytest.mark.slow
    def test_with_other_data_and_callbacks(self, group, at, first, options, tmp_path):
        continues_as_unbroken(group, tmp_path, at, first, **options)


@pytest.mark.parametrize("group", ["1x2"], indirect=True)
@pytest.mark.slow
def test_a_dataset_of_distribute_datasets_from_function(group, tmp_path):
    """It has no batch size, and its batches are those of the replicas."""
    options = {"data": "from function", "save_freq": 4}
    (result,) = group.run(
        scenarios.break_off_and_go_on, folder=str(tmp_path / "backup"), at=[1, 1], **options
    )
    assert result["batches"].tolist() == [101, 102, 200, 201, 202]


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
