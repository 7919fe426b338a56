"""A training that is broken off goes on as if it had not been, from one file, whoever has it."""

import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

import numpy as np
from scenarios import backup as scenarios

FEATURE = "`callbacks.BackupAndRestore`: interrupted anywhere, resumes bit for bit"


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_same(actual, expected, without=("epochs", "batches", "warnings", "log")):
    """Bit for bit."""
    names = [name for name in expected if not name.startswith(without)]
    assert len(names) > 10
    for name in names:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def assert_goes_on(actual, expected, batches):
    """The same state, and the same logs of the epochs that it took part in."""
    assert actual["batches"].tolist() == batches
    epochs = actual["epochs"].tolist()
    assert_same(actual, expected)
    for name in (name for name in expected if name.startswith("log")):
        np.testing.assert_array_equal(actual[name], expected[name][-len(epochs) :], name)


def batches_from(epoch, batch, per_epoch=6, together=1):
    return [
        100 * each + number + together - 1
        for each in range(epoch, scenarios.EPOCHS)
        for number in range(batch if each == epoch else 0, per_epoch, together)
    ]


def backups_in(folder):
    return sorted(path.name for path in folder.iterdir())


def goes_on_as_unbroken(group, tmp_path, at, batches, plain=False, only_worker_0=False, **options):
    """Break off after the batch `at`, and expect these batches from the restart on."""
    expected = group.run(scenarios.train_unbroken, folder=str(tmp_path / "unbroken"), **options)
    callbacks = {"plain": plain, "only_worker_0": only_worker_0}
    folder = str(tmp_path / ("{rank}" if only_worker_0 else "broken"))
    results = group.run(scenarios.break_off_and_go_on, folder=folder, at=at, **callbacks, **options)
    for actual, unbroken in zip(results, expected, strict=True):
        assert_goes_on(actual, unbroken, batches)
        assert "backup" not in str(actual["warnings"]).lower()
    assert backups_in(tmp_path) == []  # the training has ended


@pytest.mark.feature(FEATURE)
class TestGoingOn:
    @pytest.mark.parametrize(
        ("group", "kind"),
        [
            ("1x2", "delta"),
            ("2x1", "adam"),
            ("2x1", "delta"),
            pytest.param("2x1", "adacons", marks=pytest.mark.slow),
            pytest.param("2x1", "loss_scale", marks=pytest.mark.slow),
            pytest.param("2x2", "delta", marks=pytest.mark.slow),
        ],
        indirect=["group"],
    )
    def test_within_an_epoch(self, group, kind, tmp_path):
        # Backups after batches 5 and 10; broken off after the 11th.
        goes_on_as_unbroken(group, tmp_path, [1, 4], batches_from(1, 4), kind=kind, save_freq=5)

    @pytest.mark.parametrize(
        ("group", "data", "per_epoch"),
        [
            ("1x2", "steps", 4),
            ("1x2", "shuffled steps", 2),
            ("2x1", "shuffled", 6),
        ],
        indirect=["group"],
    )
    def test_with_other_data(self, group, data, per_epoch, tmp_path):
        # A backup after the first batch of the second epoch.
        goes_on_as_unbroken(
            group,
            tmp_path,
            [1, 1],
            batches_from(1, 1, per_epoch),
            data=data,
            save_freq=per_epoch + 1,
        )

    @on("2x1")
    def test_several_steps_in_one_execution(self, group, tmp_path):
        batches = batches_from(1, 2, together=2)
        goes_on_as_unbroken(group, tmp_path, [1, 3], batches, together=2, save_freq=4)

    @on("1x2")
    @pytest.mark.slow
    def test_after_an_epoch(self, group, tmp_path):
        goes_on_as_unbroken(group, tmp_path, [2, 1], batches_from(2, 0, 2), data="shuffled steps")

    @on("2x1")
    def test_a_callback_of_keras_on_worker_0_only(self, group, tmp_path):
        goes_on_as_unbroken(
            group, tmp_path, [1, 4], batches_from(1, 4), plain=True, only_worker_0=True, save_freq=5
        )


@on("2x1")
class TestFiles:
    @pytest.mark.feature(
        "`callbacks.BackupAndRestore`: a damaged file, one on another worker, none"
    )
    def test_whose_backup_it_is_and_how_good(self, group, tmp_path):
        group.run(scenarios.break_off, folder=str(tmp_path / "0"), at=[2, 1])
        names = ["epoch-1-batch-0.backup", "epoch-2-batch-0.backup"]
        assert backups_in(tmp_path / "0") == names
        newest = tmp_path / "0" / names[1]
        newest.write_bytes(newest.read_bytes()[:-1])
        # Worker 1 becomes the one with the backups.
        (tmp_path / "0").rename(tmp_path / "1")
        options = {"folder": str(tmp_path / "{rank}"), "epochs": 2, "delete_checkpoint": False}
        own, other = group.run(scenarios.go_on, **options)
        assert_same(other, own)
        assert own["epochs"].tolist() == other["epochs"].tolist() == [1]
        assert own["warnings"] == "" and "epoch-2-batch-0.backup is cut off" in str(
            other["warnings"]
        )

    def test_if_none_is_good_all_are_told(self, group, tmp_path):
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "epoch-1-batch-0.backup").write_bytes(b"")
        own, other = group.run(scenarios.message_of_going_on, folder=str(tmp_path / "{rank}"))
        assert str(own["message"]).startswith("DamagedBackup: No backup can be used")
        assert "1/epoch-1-batch-0.backup is cut off" in str(other["message"])

    def test_another_model_is_refused_on_all(self, group, tmp_path):
        group.run(scenarios.break_off, folder=str(tmp_path / "of adam"), at=[1, 1])
        options = {"folder": str(tmp_path / "of adam"), "kind": "adacons"}
        for each in group.run(scenarios.message_of_going_on, **options):
            assert "epoch-1-batch-0.backup is the backup of another optimizer" in str(
                each["message"]
            )

    def test_a_second_training_starts_at_the_beginning(self, group, tmp_path):
        options = {"folder": str(tmp_path / "backup")}
        first, second = group.run(scenarios.second_fit_starts_at_the_beginning, **options)
        for each in (first, second):
            assert each["0"].tolist() == each["1"].tolist() == [0, 1]
        assert not first["left"]  # worker 0 removes the backups; worker 1 does not wait for it
