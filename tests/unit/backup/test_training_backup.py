"""TrainingBackup on several workers, each a thread: whose settings, whose file, who writes."""

import pathlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.fake_training import FakeModel, FakeVariable
from support.fake_workers import results_on_workers, run_on_workers

from tf_adasum.backup import backup_files
from tf_adasum.backup.backup_files import Array, Backup, BackupFiles
from tf_adasum.backup.training_backup import TrainingBackup
from tf_adasum.errors import DamagedBackupError
from tf_adasum.workers.workers import Workers

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")


def callback(folder, save_freq="epoch", delete=True):
    """What is read of a BackupAndRestore."""
    return types.SimpleNamespace(
        backup_dir=str(folder),
        save_freq=save_freq,
        double_checkpoint=True,
        delete_checkpoint=delete,
    )


def model_of():
    return FakeModel([FakeVariable("kernel", np.zeros(3, "float32"))], replicas=1)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class TestAgreement:
    @pytest.mark.parametrize("save_freq", ["epoch", 1, 7, False])
    @pytest.mark.parametrize("delete", [True, False])
    def test_the_settings_are_those_of_worker_0(self, save_freq, delete, tmp_path):
        """The others have no callback, or one with other settings."""

        def part(workers):
            own = callback(tmp_path / "0", save_freq, delete=delete)
            other = callback(tmp_path / "1", 3, delete=not delete)
            made = TrainingBackup.agreed(([own], [other], [])[workers.rank], workers)
            model = model_of()
            made.begin(model)
            made.begin_epoch(model, 0)
            made.end_epoch(model, 0)
            made.end(model)  # in which all take part, or none
            workers.gather([1])
            return made.save_freq, made.saves_within_epochs

        assert results_on_workers(3, part) == [(save_freq, save_freq in (1, 7))] * 3
        is_left = save_freq == "epoch" and not delete
        assert names_in(tmp_path / "0") == ["epoch-1-batch-0.backup"] * is_left
        assert names_in(tmp_path / "1") == []

    def test_without_one_on_worker_0_there_is_none(self, tmp_path):
        made = run_on_workers(
            2, lambda own: TrainingBackup.agreed([callback(tmp_path)] * own.rank, own)
        )
        assert made == [None, None]

    @pytest.mark.parametrize(
        ("folders", "message"),
        [
            ([["a", "b"], ["a"]], "may have only one BackupAndRestore. Received: 2 of them"),
            ([["gs://a/b"]], "backup_dir='gs://a/b'"),
        ],
    )
    def test_two_or_a_folder_elsewhere_are_refused_on_all(self, folders, message):
        def part(workers):
            TrainingBackup.agreed([callback(folder) for folder in folders[workers.rank]], workers)

        for error in run_on_workers(len(folders), part):
            assert isinstance(error, ValueError) and message in str(error)


def begin(tmp_path):
    """Returns on each of three workers the restored value and epoch, or the error."""

    def part(workers):
        made = TrainingBackup.agreed([callback(tmp_path / str(workers.rank))], workers)
        model = model_of()
        made.begin(model)
        return model.variables[0].numpy()[0][0].item(), model._initial_epoch or 0

    return run_on_workers(3, part)


OF_ANOTHER_MODEL = "of another model"
DAMAGED = "damaged"


def write(folder, rank, epoch, batch, value):
    """Write a backup with this value into the folder of a worker."""
    path = folder / str(rank) / f"epoch-{epoch}-batch-{batch}.backup"
    path.parent.mkdir(exist_ok=True)
    if value == DAMAGED:
        path.write_bytes(b"half")
        return
    facts = {"epoch": epoch, "batch": batch, "position": batch, "pass": epoch, "seed": 5}
    kernel = np.zeros(9) if value == OF_ANOTHER_MODEL else np.full(3, value, "float32")
    encoded = Backup(facts, [Array("model", "kernel", [kernel])]).encoded()
    path.write_bytes(b"".join(map(bytes, encoded)))


@pytest.mark.filterwarnings("ignore:Training resumes from")
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param([(0, 1, 5, 1.0), (1, 2, 0, 2.0)], (2.0, 2), id="the furthest"),
        pytest.param([(1, 1, 0, 1.0), (2, 1, 0, 2.0)], (1.0, 1), id="the first of equal ones"),
        pytest.param([(0, 1, 5, 1.0)], (1.0, 1), id="within an epoch"),
        pytest.param([(0, 1, 0, 1.0), (1, 2, 0, DAMAGED)], (1.0, 1), id="no damaged one"),
        pytest.param([(1, 1, 0, 1.0), (1, 2, 0, OF_ANOTHER_MODEL)], (1.0, 1), id="no other's"),
        pytest.param([], (0.0, 0), id="none"),
    ],
)
def test_all_resume_from_the_same_one(written, expected, tmp_path, capsys, monkeypatch):
    """And one worker reads it."""
    for each in written:
        write(tmp_path, *each)
    read, read_bytes = [], pathlib.Path.read_bytes
    monkeypatch.setattr(
        pathlib.Path, "read_bytes", lambda path: read.append(path) or read_bytes(path)
    )
    assert begin(tmp_path) == [expected] * 3
    refused = sum(value in (DAMAGED, OF_ANOTHER_MODEL) for *_, value in written)
    assert len(read) == refused + (written != [])
    where = ", after batch 5" * (written == [(0, 1, 5, 1.0)])
    line = f"tf_adasum: resuming at epoch {expected[1] + 1}{where}\n"
    assert capsys.readouterr().out == line * (written != [])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (DAMAGED, DamagedBackupError, "1/epoch-1-batch-0.backup is cut off"),
        (OF_ANOTHER_MODEL, ValueError, "1/epoch-1-batch-0.backup is the backup of another model"),
    ],
)
def test_if_none_is_good_all_raise(value, error, message, tmp_path):
    write(tmp_path, 1, 1, 0, value)
    for raised in begin(tmp_path):
        assert isinstance(raised, error) and message in str(raised)


@pytest.mark.parametrize("is_full", [False, True])
def test_if_worker_0_cannot_write_all_raise(is_full, tmp_path, monkeypatch):
    if is_full:
        disk = types.SimpleNamespace(total=100, free=11)
        monkeypatch.setattr(backup_files.shutil, "disk_usage", lambda folder: disk)
        message = "/0 has 0.0 MiB of free space, and a backup needs at least"
    else:
        (tmp_path / "0").touch()
        message = "must be a directory that worker 0 can write to"
    write(tmp_path, 1, 1, 0, 1.0)
    for error in begin(tmp_path):
        assert isinstance(error, OSError)
        assert message in str(error) and f"{tmp_path}/0" in str(error)


def on_one_worker(folder, **options):
    return TrainingBackup.agreed([callback(folder, **options)], Workers(0, 1, None, None))


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = model_of()
    model.built = False
    with pytest.raises(ValueError, match=r"Give it a keras\.Input.*'fake', which is not built"):
        on_one_worker(tmp_path).begin(model)


@pytest.mark.parametrize("save_freq, saved", [(2, [2, 4, 7, 9]), (3, [3, 7, 10]), (100, [])])
def test_counts_batches_over_epochs(save_freq, saved, tmp_path):
    """Two epochs of five batches; in the second one two batches in each call."""
    made, model = on_one_worker(tmp_path, save_freq=save_freq, delete=False), model_of()
    seen, before = [], []
    made.begin(model)
    for epoch, batches in enumerate([[0, 1, 2, 3, 4], [1, 3, 4]]):
        made.begin_epoch(model, epoch)
        made.begin_batches(model)
        for batch in batches:
            made.end_batch(model, batch)
            if names_in(tmp_path) != before:
                seen.append(5 * epoch + batch + 1)
            before = names_in(tmp_path)
        made.end_epoch(model, epoch)
    assert seen == saved


def test_the_seed_of_the_order_is_worker_0s_and_follows_the_global_one(tmp_path):
    def seed_of(workers):
        made = TrainingBackup.agreed([callback(tmp_path)], workers)
        model = model_of()
        made.begin(model)
        made.end_epoch(model, 0)
        workers.any(False)  # the file is there
        return BackupFiles(tmp_path).newest(Workers(0, 1, None, None)).facts["seed"]

    def drawn(seed, count=1):
        tf.random.set_seed(seed)
        for path in tmp_path.iterdir():
            path.unlink()
        return results_on_workers(count, seed_of)

    one = drawn(7, count=2)
    assert one == drawn(7) * 2
    assert drawn(8)[0] != one[0]
    assert drawn(None) != drawn(None)


def test_files_of_keras_are_refused(tmp_path):
    saved = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
    saved.compile("sgd", "mse")
    saved.optimizer.build(saved.trainable_variables)
    of_keras = keras.callbacks.BackupAndRestore(str(tmp_path))
    of_keras.set_model(saved)
    of_keras.on_epoch_end(2)

    with pytest.raises(ValueError, match="Load its latest"):
        on_one_worker(tmp_path).begin(saved)
    assert (tmp_path / "latest.weights.h5").exists()
