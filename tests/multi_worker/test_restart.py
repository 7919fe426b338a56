"""Each optimizer in `fit`: resumes in other processes as if unbroken, and evaluates."""

import contextlib

import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import restart as scenarios
from support import keras_versions
from support.worker_group import WorkerGroup


def part_of(result, prefix):
    """The arrays whose names begin with a prefix, without it."""
    part = {n.removeprefix(prefix): v for n, v in result.items() if n.startswith(prefix)}
    assert part
    return part


def differ(results, prefix):
    one, other = (part_of(result, prefix) for result in results)
    return any((other[name] != value).any() for name, value in one.items())


@on("2x1")
@pytest.mark.parametrize(
    "name",
    keras_versions.marked(scenarios.OPTIMIZERS, {"lamb": keras_versions.needs_state_of_lamb}),
)
@pytest.mark.slow
def test_what_other_processes_saved_is_resumed(group, name, tmp_path):
    saving = {"name": name, "folder": str(tmp_path / "saved")}
    with contextlib.closing(WorkerGroup(2, 1, tmp_path, fresh=True)) as first:
        unbroken = first.run(scenarios.train_and_save, **saving)
    # It is a training under way.
    is_local = name in scenarios.LOCAL_SLOTS
    assert differ(unbroken, "saved slot") == is_local
    assert differ(unbroken, "saved weight") == (name == "delta_local")
    assert not differ(unbroken, "final weight")
    if name == "adascale":
        assert 1.05 < unbroken[0]["saved gain"] < 1.95
        assert unbroken[0]["final scale invariant steps"] > scenarios.STEPS + 0.5
    for form in ("model.keras", "checkpoint"):
        results = group.run(scenarios.restore_and_resume, form=form, **saving)
        for actual, expected in zip(results, unbroken, strict=True):
            assert_close([actual], expected)
    if is_local:  # else all files hold the same
        results = group.run(
            scenarios.restore_and_resume, form="model.keras", from_worker=0, **saving
        )
        saved = part_of(unbroken[0], "saved")
        assert_close([part_of(each, "saved") for each in results], saved)
        assert not differ(results, "final weight")


@on("2x1")
@keras_versions.needs_own_backups
class TestBackup:
    def test_adascale_goes_on_as_if_unbroken(self, group, tmp_path):
        arguments = {"name": "adascale", "folder": str(tmp_path)}
        results = group.run(scenarios.interrupted_with_backup, **arguments)
        expected = group.run(scenarios.unbroken, name="adascale")[0]
        saved = part_of(results[0], "saved")
        assert saved[" gain"] > 1.05
        for actual in results:
            assert actual["epochs"].tolist() == [1]
            assert_close([part_of(actual, "begin")], saved)
            assert_close([part_of(actual, "final")], part_of(expected, "final"))

    def test_local_slots_are_each_worker_s_own(self, group, tmp_path):
        arguments = {"name": "delta_local", "folder": str(tmp_path)}
        results = group.run(scenarios.interrupted_with_backup, **arguments)
        assert differ(results, "saved slot") and not differ(results, "final weight")
        for actual in results:
            assert_close([part_of(actual, "begin")], part_of(actual, "saved"))


@on("2x1", "1x2")
def test_local_steps_end_before_evaluation(group):
    results = group.run(scenarios.fit_and_evaluate)
    for point in results[0]:
        if point.startswith(("validation", "before", "after")):
            replicas = np.concatenate([actual[point] for actual in results])
            assert (np.ptp(replicas, axis=0).max() > 0) == point.startswith("before"), point
    for actual in results:
        for name in ("evaluate", "predict"):
            np.testing.assert_array_equal(actual[name], results[0][name], err_msg=name)
            # Other batches, another order of summation.
            np.testing.assert_allclose(actual[name], actual[f"{name} alone"], rtol=1e-5, atol=1e-6)


@on("1x2")
@pytest.mark.parametrize("name", scenarios.LOCAL_SLOTS)
def test_embedding_equals_a_dense_table(group, name):
    (actual,) = group.run(scenarios.fit_embedding, name=name)
    np.testing.assert_array_equal(actual["sparse"][1], actual["sparse"][0])
    # Rows add up in another order, and six steps of Adam spread the roundings.
    np.testing.assert_allclose(actual["sparse"], actual["dense"], rtol=1e-4, atol=1e-5)
    assert (np.abs(actual["sparse"] - actual["start"]).max(axis=1) > 1e-4).all()
