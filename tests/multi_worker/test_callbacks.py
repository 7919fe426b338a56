"""The same list of callbacks on every worker: one writer, one state, one end."""

import csv
import pathlib

import keras
import numpy as np
import pytest
from scenarios import callbacks as scenarios
from support import event_files, stacks

from tf_adasum.workers import callbacks as worker_callbacks

WRITING = ["ModelCheckpoint", "CSVLogger", "TensorBoard"]
BACKUPS = ["chief"] if stacks.IS_KERAS_2 else ["epoch-3-batch-0.backup"]


def on(*topologies):
    return pytest.mark.parametrize("group", topologies, indirect=True, scope="module")


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def files_below(folder):
    return sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())


def assert_written_once(folder, results, epochs, backups):
    """Each file is there as one process would write it."""
    with open(folder / "log.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["epoch", "loss", "val_loss"]
    assert [row[0] for row in rows[1:]] == [str(epoch) for epoch in range(epochs)]
    for kind in ("train", "validation"):
        assert len(files_below(folder / "board" / kind)) == 1
    assert sorted(path.name for path in (folder / "backup").iterdir()) == backups
    weights = keras.models.load_model(folder / "checkpoint" / "model.keras").get_weights()
    for result in results:
        assert_same(result, {f"weight{index}": value for index, value in enumerate(weights)})


@pytest.mark.feature("`ModelCheckpoint`, `CSVLogger`, `TensorBoard`: one writer")
class TestFiles:
    @on("2x1")
    def test_worker_0_alone_writes_to_a_common_folder(self, group, tmp_path):
        results = group.run(scenarios.train_with_files, folder=str(tmp_path), epochs=3)
        assert_written_once(tmp_path, results, epochs=3, backups=BACKUPS)

    @on("2x1")
    @pytest.mark.keras3_only("all workers of Keras 2 write, the others to temporary files")
    def test_the_other_worker_writes_nothing_to_a_folder_of_its_own(self, group, tmp_path):
        group.run(scenarios.train_with_files, folder=str(tmp_path / "{rank}"), epochs=1)
        assert list((tmp_path / "1").iterdir()) == []
        assert len(files_below(tmp_path / "0")) >= 5

    @on("1x2")
    @pytest.mark.keras3_only("BackupAndRestore of Keras 2 has other files")
    def test_one_process_writes_as_ever(self, group, tmp_path):
        results = group.run(scenarios.train_with_files, folder=str(tmp_path), epochs=2)
        backups = ["latest.weights.h5", "training_metadata.json"]  # Keras's own
        assert_written_once(tmp_path, results, epochs=2, backups=backups)


@pytest.mark.feature("`TensorBoard`: what its own reader finds in the event files")
@on("2x1")
def test_tensorboard_shows_what_is_logged(group, tmp_path):
    own, other = group.run(scenarios.train_with_tensorboard, folder=str(tmp_path / "{rank}"))
    assert_same(other, own)
    assert files_below(tmp_path / "1") == []
    for kind, names in [
        ("train", ["loss", "orthogonality", *(name for name in own if "orthogonality/" in name)]),
        ("validation", ["val_loss"]),
    ]:
        found = event_files.scalars_in(tmp_path / "0" / kind)
        assert len(names) > 2 or kind == "validation"
        for name in names:
            steps, values = zip(*found[f"epoch_{name.removeprefix('val_')}"], strict=True)
            assert steps == (0, 1)
            np.testing.assert_array_equal(np.float32(values), np.float32(own[name]), err_msg=name)
        if kind == "train":
            # An epoch has two batches; the last one's loss is the mean of its epoch.
            steps, values = zip(*found["batch_loss"], strict=True)
            assert len(steps) == 4 and [*np.diff(steps)] == [1, 1, 1]
            # Another order of the same additions in float32. Keras 2 adds up what workers log.
            added = 2 if stacks.IS_KERAS_2 else 1
            np.testing.assert_allclose(np.divide(values[1::2], added), own["loss"], rtol=1e-6)
            histograms = [tag for tag in found if tag.endswith("/histogram")]
            assert len(histograms) == len(own["weights"])
            assert all([step for step, _ in found[tag]] == [0, 1] for tag in histograms)


@pytest.mark.feature("`callbacks.OnFirstWorker`: what needs all workers is refused, by name")
@on("2x1")
@pytest.mark.keras3_only("in `fit` of Keras 2 all workers save")
def test_a_callback_on_worker_0_keeps_nobody_waiting(group, tmp_path):
    own, other = group.run(scenarios.do_alone, folder=str(tmp_path))
    assert (own["batches"], other["batches"]) == (4, 0)
    # It stopped within the second epoch, which all have trained to its end.
    assert own["epochs"].tolist() == other["epochs"].tolist() == [0, 1]
    calls = ["model.evaluate", "model.train_on_batch", *["a collective"] * 2]
    refused = own["refused"].tolist()
    assert len(refused) == 2 * len(calls) and len(other["refused"]) == 0
    for text, call in zip(refused, 2 * calls, strict=True):
        assert text.startswith(call) and "Alone runs on worker 0 only" in text
    # It may predict: on this worker alone, as all together do.
    np.testing.assert_allclose(own["predicted"], own["predicted together"], rtol=1e-6)
    weights = {name: value for name, value in own.items() if name.startswith("weight")}
    assert_same({name: other[name] for name in weights}, weights)
    saved = keras.models.load_model(tmp_path / "1.keras").get_weights()
    with np.load(tmp_path / "1.npz") as read:
        for index, weight in enumerate(saved):
            np.testing.assert_array_equal(weight, own[f"weight{index}"])
            np.testing.assert_array_equal(weight, read[f"arr_{index}"])


@on("2x1")
def test_a_call_of_one_worker_within_fit_is_named(group):
    for result in group.run(scenarios.evaluate_alone):
        assert "evaluate within fit on worker 0, fit on worker 1" in str(result["error"])


class TestList:
    @on("2x1")
    def test_on_two_workers(self, group, tmp_path):
        own, other = group.run(scenarios.names_in_list, folder=str(tmp_path / "{rank}"))
        of_worker_0, of_all = WRITING, ["EarlyStopping"]
        if stacks.IS_KERAS_2:  # there all workers write models, the others to temporary files
            of_worker_0, of_all = WRITING[1:], ["ModelCheckpoint", "BackupAndRestore", *of_all]
        first, last = ["RestoreFirst", "FirstCallback"], ["LastCallback", "SaveLast"]
        assert {*own["names"]} == {*first, *of_worker_0, *of_all, *last}
        assert [*other["names"]] == [*first, *of_all, *last]

    @on("1x2")
    def test_in_one_process(self, group, tmp_path):
        (own,) = group.run(scenarios.names_in_list, folder=str(tmp_path))
        assert [*own["names"]] == [*WRITING, "BackupAndRestore", "EarlyStopping"]

    def test_under_no_strategy(self, tmp_path):
        worker_callbacks.install()
        once = keras.callbacks.CallbackList.set_model
        worker_callbacks.install()
        assert keras.callbacks.CallbackList.set_model is once
        given = scenarios.callbacks_that_write(tmp_path)
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        assert keras.callbacks.CallbackList(given, model=model).callbacks == given


@pytest.mark.feature(
    "`EarlyStopping`, `TerminateOnNaN`, `LearningRateScheduler`: all stop together"
)
@on("2x1")
class TestStopping:
    def test_early_stopping(self, group):
        results = group.run(scenarios.train_until_stopped, early=True)
        assert_same(results[1], results[0])
        assert results[0]["epochs"].tolist() == [0, 1]

    def test_one_worker_stops_all(self, group):
        results = group.run(scenarios.train_until_stopped, rank=1, epoch=1)
        assert_same(results[1], results[0])
        assert results[0]["epochs"].tolist() == [0, 1]

    def test_other_callbacks_do_the_same_on_all(self, group):
        results = group.run(scenarios.train_with_other_callbacks)
        assert_same(results[1], results[0])
        # Each epoch halves the rate, and from the second on ReduceLROnPlateau does so once more.
        np.testing.assert_allclose(results[0]["rate"], [0.005, 0.00125, 0.0003125], rtol=1e-6)


@pytest.fixture(scope="module")
def unbroken(group):
    """The state that worker 0 has at the end of a training without interruption."""
    return group.run(scenarios.train_unbroken)[0]


@on("2x1")
@stacks.needs_own_backups
class TestRestoring:
    @pytest.mark.parametrize(
        "folder, options",
        [("common", {}), ("of {rank}", {}), ("chief", {"only_worker_0": True})],
        ids=["common folder", "a folder of each", "callback on worker 0 only"],
    )
    @pytest.mark.feature("`BackupAndRestore`: worker 0's backup reaches all")
    def test_interrupted_training_equals_unbroken(self, group, unbroken, tmp_path, folder, options):
        folder = str(tmp_path / folder)
        for actual in group.run(scenarios.train_interrupted, folder=folder, **options):
            assert actual.pop("epochs").tolist() == [2, 3]
            assert_same(actual, unbroken)
        # The training has ended: no backup is left, and worker 1 has never written one.
        assert files_below(tmp_path) == []

    def test_in_a_custom_loop(self, group, tmp_path):
        for actual in group.run(scenarios.restore_in_custom_loop, folder=str(tmp_path / "{rank}")):
            assert actual.pop("epoch") == 2
            assert len(actual) > 10 and all(actual.values())


@on("2x2")
@pytest.mark.parametrize("piece_bytes", [8, 64 * 2**20])
def test_every_bit_of_every_dtype_is_shared(group, piece_bytes):
    expected = [value.tobytes() for value in scenarios.values_of(0)]
    for actual in group.run(scenarios.share_state, piece_bytes=piece_bytes):
        assert actual.pop("epoch") == 5
        assert len(actual) == len(expected) * group.devices
        for name, value in actual.items():
            assert value.tobytes() == expected[int(name.split(".")[0])], name
