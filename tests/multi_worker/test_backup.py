"""A training that is broken off goes on as if it had not been, from one file, whoever has it."""

import backup_scenarios
import numpy as np
import pytest

FEATURE = "`callbacks.BackupAndRestore`: broken off anywhere, goes on bit for bit"


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def run(group, scenario, **arguments):
    return group.run(f"backup_scenarios.{scenario}", **arguments)


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
        for each in range(epoch, backup_scenarios.EPOCHS)
        for number in range(batch if each == epoch else 0, per_epoch, together)
    ]


def backups_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.feature(FEATURE)
@on("1x2", "2x1", "2x2")
class TestGoingOn:
    @pytest.mark.parametrize("kind", backup_scenarios.TRAININGS)
    def test_within_an_epoch(self, group, kind, tmp_path):
        if group.replicas == 4 and kind not in ("adam", "delta"):
            pytest.skip("these two have all that differs between replicas")
        options = {"kind": kind, "save_freq": 5}
        expected = run(group, "train_unbroken", folder=str(tmp_path / "unbroken"), **options)
        # Backups after batches 5 and 10; broken off after the 12th.
        results = run(
            group, "break_off_and_go_on", folder=str(tmp_path / "broken"), at=[1, 5], **options
        )
        for actual, unbroken in zip(results, expected, strict=True):
            assert_goes_on(actual, unbroken, batches_from(1, 4))
            assert actual["warnings"] == ""
        assert backups_in(tmp_path) == []

    @pytest.mark.parametrize(
        "data, per_epoch", [("shuffled", 6), ("unknown", 6), ("steps", 4), ("shuffled steps", 2)]
    )
    def test_with_other_data(self, group, data, per_epoch, tmp_path):
        if group.replicas == 4:
            pytest.skip("the data come as on two workers")
        options = {"data": data, "save_freq": per_epoch + 1}
        expected = run(group, "train_unbroken", folder=str(tmp_path / "unbroken"), **options)
        at = [2, 0] if per_epoch == 2 else [1, 1]  # a backup at [1, 0], and the next one later
        results = run(
            group, "break_off_and_go_on", folder=str(tmp_path / "broken"), at=at, **options
        )
        for actual, unbroken in zip(results, expected, strict=True):
            assert_goes_on(actual, unbroken, batches_from(1, 1, per_epoch))

    def test_several_steps_in_one_execution(self, group, tmp_path):
        if group.replicas == 4:
            pytest.skip("as on two workers")
        options = {"together": 2, "save_freq": 4}
        expected = run(group, "train_unbroken", folder=str(tmp_path / "unbroken"), **options)
        results = run(
            group, "break_off_and_go_on", folder=str(tmp_path / "broken"), at=[1, 3], **options
        )
        for actual, unbroken in zip(results, expected, strict=True):
            assert_goes_on(actual, unbroken, batches_from(1, 2, together=2))

    @pytest.mark.parametrize("data", ["shuffled", "shuffled steps"])
    def test_after_an_epoch(self, group, data, tmp_path):
        if group.replicas == 4:
            pytest.skip("as on two workers")
        expected = run(group, "train_unbroken", folder=str(tmp_path / "unbroken"), data=data)
        results = run(
            group, "break_off_and_go_on", folder=str(tmp_path / "broken"), at=[2, 1], data=data
        )
        per_epoch = 6 if data == "shuffled" else 2
        for actual, unbroken in zip(results, expected, strict=True):
            assert_goes_on(actual, unbroken, batches_from(2, 0, per_epoch))
