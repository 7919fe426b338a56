"""Each optimizer in `fit`: goes on in other processes as if unbroken, evaluates, overflows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scenarios import restart as scenarios
from support import stacks
from support.stacks import Variable
from support.worker_group import WorkerGroup

from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import AdaScale

on_two_workers = pytest.mark.parametrize("group", ["2x1"], indirect=True, scope="module")
# Those with a state of their own in both forms.
FORMS = {
    name: ["model.keras", "checkpoint"] if name in ("adascale", "delta_local") else ["model.keras"]
    for name in scenarios.OPTIMIZERS
}


def part_of(result, *prefixes):
    part = {name: value for name, value in result.items() if name.startswith(prefixes)}
    assert part
    return part


def assert_same(actual, expected):
    """Bit for bit."""
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def assert_same_state(actual, prefix, expected, expected_prefix):
    """The same, where the names begin with another word."""
    without = [
        {name.removeprefix(begin): value for name, value in part_of(result, begin).items()}
        for result, begin in ((actual, prefix), (expected, expected_prefix))
    ]
    assert_same(*without)


def differ(one, other, prefix):
    return any((other[name] != value).any() for name, value in part_of(one, prefix).items())


def test_adascale_can_be_checkpointed(tmp_path):
    def built(rate):
        optimizer = AdaScale(keras.optimizers.SGD(rate, momentum=0.9))
        optimizer.build([Variable(np.zeros(3, "float32"), name="v")])
        return optimizer

    saved, restored = built(0.1), built(0.2)
    for number, variable in enumerate(saved.variables):
        variable.assign(tf.fill(variable.shape, tf.cast(number + 1, variable.dtype)))
    path = tf.train.Checkpoint(optimizer=saved).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(optimizer=restored).read(path).assert_existing_objects_matched()
    for actual, expected in zip(restored.variables, saved.variables, strict=True):
        np.testing.assert_array_equal(
            actual.numpy(), expected.numpy(), err_msg=keras_compat.path_of(expected)
        )


@pytest.fixture(scope="module")
def saved(request, tmp_path_factory):
    """The folder of the files, and each optimizer's results; the processes are gone."""
    folder = tmp_path_factory.mktemp("saved")
    own = (each for each in request.session.items if each.path == request.path)
    tests = [each for each in own if "saved" in each.fixturenames]
    wanted = {each.callspec.params["name"] for each in tests}
    first = WorkerGroup(2, 1, tmp_path_factory.mktemp("first_processes"), fresh=True)
    try:
        return folder, {
            name: first.run(
                scenarios.train_and_save, name=name, folder=f"{folder}/{name}", forms=forms
            )
            for name, forms in FORMS.items()
            if name in wanted
        }
    finally:
        first.close()


@on_two_workers
class TestOtherProcesses:
    @pytest.mark.parametrize("name", scenarios.OPTIMIZERS)
    def test_what_is_saved_is_a_training_under_way(self, saved, name, group):
        results = saved[1][name]
        local = name in scenarios.LOCAL_SLOTS
        assert differ(results[0], results[1], "saved slot") == local
        assert differ(results[0], results[1], "saved weight") == (name == "delta_local")
        assert not differ(results[0], results[1], "final weight")
        if name == "adascale":
            assert 1.05 < results[0]["saved gain"] < 1.95
            assert results[0]["final scale invariant steps"] > scenarios.STEPS + 0.5

    @pytest.mark.feature("saved by each worker within an epoch, restored in new processes")
    @pytest.mark.parametrize(
        "name", stacks.marked(scenarios.OPTIMIZERS, {"lamb": stacks.needs_state_of_lamb})
    )
    def test_each_restores_its_own(self, group, saved, name):
        folder, unbroken = f"{saved[0]}/{name}", saved[1][name]
        for form in FORMS[name]:
            results = group.run(scenarios.restore_and_go_on, name=name, folder=folder, form=form)
            for actual, expected in zip(results, unbroken, strict=True):
                assert_same(actual, expected)


@on_two_workers
@pytest.mark.parametrize("name", scenarios.LOCAL_SLOTS)  # else all files hold the same
@pytest.mark.feature("all workers restore worker 0's file")
def test_all_restore_the_file_of_worker_0(group, saved, name):
    folder, unbroken = f"{saved[0]}/{name}", saved[1][name]
    own, other = group.run(
        scenarios.restore_and_go_on, name=name, folder=folder, form="model.keras", from_worker=0
    )
    for actual in own, other:
        assert_same(part_of(actual, "saved"), part_of(unbroken[0], "saved"))
    assert_same(part_of(other, "final weight"), part_of(own, "final weight"))


@on_two_workers
@pytest.mark.feature("`BackupAndRestore`: worker 0's backup reaches all")
@stacks.needs_own_backups
class TestBackup:
    def test_adascale_goes_on_as_if_unbroken(self, group, tmp_path):
        results = group.run(
            scenarios.interrupted_with_backup, name="adascale", folder=str(tmp_path)
        )
        expected = group.run(scenarios.unbroken, name="adascale")[0]
        for actual in results:
            assert actual["epochs"].tolist() == [1]
            assert_same_state(actual, "begin", results[0], "saved")
            assert_same_state(actual, "final", expected, "final")
        assert results[0]["saved gain"] > 1.05

    def test_local_slots_are_each_worker_s_own(self, group, tmp_path):
        results = group.run(
            scenarios.interrupted_with_backup, name="delta_local", folder=str(tmp_path)
        )
        assert differ(results[0], results[1], "saved slot")
        for actual in results:
            assert_same_state(actual, "begin", actual, "saved")
        own, other = (part_of(actual, "final weight") for actual in results)
        assert_same(own, other)


@pytest.mark.parametrize("group", ["2x1", "1x2"], indirect=True, scope="module")
@pytest.mark.feature("`DeltaAdasum` with local steps: validation, `evaluate`, `predict`")
def test_local_steps_end_before_evaluation(group):
    results = group.run(scenarios.fit_and_evaluate)
    replicas = {
        point: np.concatenate([actual[point] for actual in results], axis=-2)
        for point in results[0]
        if point in ("step", "validation", "epoch") or point.startswith(("before", "after"))
    }

    def spread(weights):  # over the replicas
        return np.ptp(weights, axis=-2).max(axis=-1)

    # Five steps: three, and two that the end of the epoch combines.
    is_combined = spread(replicas["step"]) == 0
    assert is_combined.tolist() == 2 * [False, False, True, False, False]
    assert replicas["validation"].shape == replicas["epoch"].shape == (2, 2, 7)
    for point, weights in replicas.items():
        if point != "step":
            assert (spread(weights) > 0).all() == point.startswith("before"), point
    np.testing.assert_array_equal(replicas["validation"], replicas["epoch"])
    for actual in results:
        for name in ("loss", "val_loss", "evaluate", "predict"):
            np.testing.assert_array_equal(actual[name], results[0][name], err_msg=name)
        for name in ("evaluate", "predict"):  # other batches, another order of summation
            np.testing.assert_allclose(actual[name], actual[f"{name} alone"], rtol=1e-5, atol=1e-6)


@on_two_workers
@pytest.mark.parametrize("name", scenarios.OPTIMIZERS)
@pytest.mark.feature("`LossScaleOptimizer`, `mixed_float16`: one replica overflows")
def test_one_overflow_is_skipped_by_all(group, name):
    results = group.run(scenarios.overflow_on_one_replica, name=name, poisoned_replica=1)
    for actual in results:
        assert actual["scales"].tolist() == [64, 32, 32, 32, 32]
        assert np.isfinite(actual["weights"]).all() and np.isfinite(actual["slots"]).all()
        for kind in ("weights", "slots"):  # τ and σ² are among these, and the local steps taken
            np.testing.assert_array_equal(actual[kind][1], actual[kind][0])
        assert (actual["weights"][2] != actual["weights"][1]).all()
        np.testing.assert_array_equal(actual["final"], results[0]["final"])


@pytest.mark.parametrize("group", ["1x2"], indirect=True, scope="module")
@pytest.mark.parametrize(
    "name, repeated",
    [
        ("adascale", True),
        ("lamb", True),
        ("delta", False),
        ("delta_local", False),
        ("delta_local", True),
    ],
)
@pytest.mark.feature("`AdaScale`, `LAMB`, `DeltaAdasum`: sparse gradients")
def test_embedding_equals_a_dense_table(group, name, repeated):
    (actual,) = group.run(scenarios.fit_embedding, name=name, repeated=repeated)
    sparse, dense = actual["sparse"], actual["dense"]
    for own in sparse:
        np.testing.assert_array_equal(own, sparse[0])
    # Rows add up in another order, and six steps of Adam spread the roundings.
    np.testing.assert_allclose(sparse, dense, rtol=1e-4, atol=1e-5)
    learnt = sparse[0][: actual["table"].size].reshape(actual["table"].shape) - actual["table"]
    assert (np.abs(learnt[:-1]) > 1e-4).any(axis=1).all()
