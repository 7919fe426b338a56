"""TrainingBackup on several workers, each a thread: whose settings, whose file, who writes."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.fake_training import FakeModel, FakeVariable
from support.fake_workers import each_of

from tf_adasum.backup.backup_files import Array, Backup, BackupFiles
from tf_adasum.backup.training_backup import TrainingBackup
from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import DamagedBackup
from tf_adasum.workers.workers import Workers

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")


def callback(folder, save_freq="epoch", double=True, delete=True):
    """What is read of a BackupAndRestore."""
    return types.SimpleNamespace(
        backup_dir=str(folder),
        save_freq=save_freq,
        double_checkpoint=double,
        delete_checkpoint=delete,
    )


def model_of(value=0.0):
    return FakeModel([FakeVariable("kernel", np.full(3, value, "float32"))], replicas=1)


def write(folder, epoch, batch=0, value=1.0):
    facts = {"epoch": epoch, "batch": batch, "position": batch, "pass": epoch, "seed": 5}
    arrays = [Array("model", "kernel", [np.full(3, value, "float32")])]
    BackupFiles(folder).write(Backup(facts, arrays))


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def values_of(outcomes):
    """Returns what all workers returned; raises what one of them raised."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


class TestAgreement:
    @pytest.mark.parametrize("save_freq", ["epoch", 1, 7, False])
    @pytest.mark.parametrize("delete", [True, False])
    def test_worker_0_says_when(self, save_freq, delete, tmp_path):
        """Where the others have no callback, or one with other settings."""

        def part(workers):
            own = callback(tmp_path / "0", save_freq, delete=delete)
            other = callback(tmp_path / "1", 3, delete=not delete)
            callbacks = ([own], [other], [])[workers.rank]
            made = TrainingBackup.agreed(callbacks, workers)
            model = model_of()
            made.begin(model)
            made.begin_epoch(model, 0)
            made.end_epoch(model, 0)
            made.end(model)  # in which all take part, or none
            workers.gather([1])
            return made.save_freq, made.saves_within_epochs

        assert values_of(each_of(3, part)) == [(save_freq, save_freq in (1, 7))] * 3
        is_left = save_freq == "epoch" and not delete
        assert names_in(tmp_path / "0") == ["epoch-1-batch-0.backup"] * is_left
        assert names_in(tmp_path / "1") == []

    def test_without_one_on_worker_0_there_is_none(self, tmp_path):
        made = each_of(2, lambda own: TrainingBackup.agreed([callback(tmp_path)] * own.rank, own))
        assert made == [None, None]

    def test_two_are_refused_on_all(self, tmp_path):
        raised = each_of(
            2, lambda own: TrainingBackup.agreed([callback(tmp_path)] * (2 - own.rank), own)
        )
        for error in raised:
            assert isinstance(error, ValueError)
            assert "may have only one BackupAndRestore. Received: 2 of them" in str(error)

    def test_a_folder_elsewhere_is_refused(self):
        (raised,) = each_of(1, lambda own: TrainingBackup.agreed([callback("gs://a/b")], own))
        assert isinstance(raised, ValueError) and "backup_dir='gs://a/b'" in str(raised)


class TestNewest:
    def begin(self, tmp_path, count=3):
        """Returns on each worker the restored value and epoch, or the error."""

        def part(workers):
            made = TrainingBackup.agreed([callback(tmp_path / str(workers.rank))], workers)
            model = model_of()
            made.begin(model)
            return model.variables[0].numpy()[0][0].item(), keras_compat.initial_epoch(model)

        return each_of(count, part)

    def test_all_go_on_from_the_one_that_is_furthest(self, tmp_path, capsys):
        write(tmp_path / "0", 1, 5, value=1)
        write(tmp_path / "1", 2, 0, value=2)
        assert values_of(self.begin(tmp_path)) == [(2.0, 2)] * 3
        assert capsys.readouterr().out.count("resuming at epoch 3, batch 1") == 1

    def test_of_equal_ones_the_first_workers_is_taken(self, tmp_path):
        for rank in 1, 2:
            write(tmp_path / str(rank), 1, value=rank)
        assert values_of(self.begin(tmp_path)) == [(1.0, 1)] * 3

    @pytest.mark.filterwarnings("ignore:Training resumes from")
    def test_a_damaged_one_is_no_candidate(self, tmp_path):
        write(tmp_path / "0", 1, value=1)
        write(tmp_path / "1", 2, value=2)
        (tmp_path / "1" / "epoch-2-batch-0.backup").write_bytes(b"half")
        assert values_of(self.begin(tmp_path)) == [(1.0, 1)] * 3

    def test_if_none_is_good_all_are_told(self, tmp_path):
        write(tmp_path / "1", 1)
        (tmp_path / "1" / "epoch-1-batch-0.backup").write_bytes(b"")
        raised = self.begin(tmp_path)
        assert all(isinstance(error, DamagedBackup) for error in raised)
        assert all("1/epoch-1-batch-0.backup is cut off" in str(error) for error in raised)

    def test_without_any_training_begins_at_the_beginning(self, tmp_path):
        assert values_of(self.begin(tmp_path)) == [(0.0, 0)] * 3

    def test_one_of_another_model_is_refused_on_all(self, tmp_path):
        arrays = [Array("model", "kernel", [np.zeros([9, 9])])]
        facts = {"epoch": 1, "batch": 0, "position": 0, "pass": 0, "seed": 5}
        BackupFiles(tmp_path / "1").write(Backup(facts, arrays))
        for error in self.begin(tmp_path):
            assert isinstance(error, ValueError)
            assert "1/epoch-1-batch-0.backup is the backup of another model" in str(error)

    def test_one_of_another_model_leaves_the_one_before(self, tmp_path):
        write(tmp_path / "1", 1, value=1)
        arrays = [Array("model", "kernel", [np.zeros([9, 9])])]
        facts = {"epoch": 2, "batch": 0, "position": 0, "pass": 0, "seed": 5}
        data = b"".join(bytes(part) for part in Backup(facts, arrays).encoded())
        (tmp_path / "1" / "epoch-2-batch-0.backup").write_bytes(data)
        with pytest.warns(
            UserWarning, match="-1-batch-0.backup, .*-2-batch-0.backup is the backup"
        ):
            assert values_of(self.begin(tmp_path)) == [(1.0, 1)] * 3

    def test_if_worker_0_cannot_write_all_are_told(self, tmp_path):
        (tmp_path / "0").touch()
        write(tmp_path / "1", 1, value=1)
        for error in self.begin(tmp_path):
            assert isinstance(error, OSError)
            assert "must be a directory that worker 0 can write to" in str(error)
            assert f"backup_dir='{tmp_path}/0'" in str(error)


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = model_of()
    model.built = False
    (raised,) = each_of(
        1, lambda own: TrainingBackup.agreed([callback(tmp_path)], own).begin(model)
    )
    assert "Give it a keras.Input" in str(raised) and "'fake', which is not built" in str(raised)


@pytest.mark.parametrize("save_freq, saved", [(2, [2, 4, 7, 9]), (3, [3, 7, 10]), (100, [])])
def test_counts_batches_over_epochs(save_freq, saved, tmp_path):
    """Two epochs of five batches; in the second one two batches in each call."""
    seen = []

    def part(workers):
        made = TrainingBackup.agreed([callback(tmp_path, save_freq, delete=False)], workers)
        model, before = model_of(), set()
        made.begin(model)
        for epoch, batches in enumerate([[0, 1, 2, 3, 4], [1, 3, 4]]):
            made.begin_epoch(model, epoch)
            made.begin_batches(model)
            for batch in batches:
                made.end_batch(model, batch)
                if set(names_in(tmp_path)) - before:
                    seen.append(5 * epoch + batch + 1)
                before |= set(names_in(tmp_path))
            made.end_epoch(model, epoch)

    values_of(each_of(1, part))
    assert seen == saved


@pytest.mark.parametrize("save_freq", [2, 3, 4, 7])
@pytest.mark.parametrize("per_call", [1, 2])
def test_keeps_its_rhythm_after_a_restart(save_freq, per_call, tmp_path):
    """Three epochs of five batches, broken off after each batch, and gone on to the end."""

    def saves(folder, end=99):
        """Train up to so many batches; return after which ones a backup was made."""
        made = TrainingBackup.agreed([callback(folder, save_freq, delete=False)], on_one_worker())
        model, seen = model_of(), []
        made.begin(model)
        first, (skipped, _) = keras_compat.initial_epoch(model), made._order.take_start()
        before = names_in(folder)
        for epoch in range(first, 3):
            made.begin_epoch(model, epoch)
            made.begin_batches(model)
            begin = skipped if epoch == first else 0
            for batch in sorted({*range(begin + per_call, 5, per_call), *([5] * (begin < 5))}):
                if 5 * epoch + batch > end:
                    return seen
                made.end_batch(model, batch - 1)
                if names_in(folder) != before:
                    before = names_in(folder)
                    seen.append(5 * epoch + batch)
            made.end_epoch(model, epoch)
        return seen

    unbroken = saves(tmp_path / "unbroken")
    for end in range(1, 15):
        folder = tmp_path / str(end)
        broken = saves(folder, end)
        assert broken + saves(folder) == unbroken, f"broken off after {end}"


def on_one_worker():
    return Workers(0, 1, None, None)


def test_the_seed_of_the_order_is_worker_0s_and_follows_the_global_one(tmp_path):
    def seed_of(workers):
        made = TrainingBackup.agreed([callback(tmp_path)], workers)
        model = model_of()
        made.begin(model)
        made.end_epoch(model, 0)
        workers.any(False)  # the file is there
        return BackupFiles(tmp_path).newest()[1].facts["seed"]

    def drawn(seed, count):
        tf.random.set_seed(seed)
        for path in tmp_path.iterdir():
            path.unlink()
        return values_of(each_of(count, seed_of))

    one = drawn(7, 2)
    assert one[0] == one[1] == drawn(7, 1)[0]
    assert drawn(8, 1)[0] != one[0]
    assert drawn(None, 1)[0] != drawn(None, 1)[0]


def test_goes_on_from_the_files_of_keras(tmp_path):
    """On all workers, where worker 0 alone has them."""
    saved = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
    saved.compile("sgd", "mse")
    saved.optimizer.build(saved.trainable_variables)
    of_keras = keras.callbacks.BackupAndRestore(str(tmp_path))
    of_keras.set_model(saved)
    of_keras.on_epoch_end(2)

    model = keras.models.clone_model(saved)
    model.compile("sgd", "mse")

    def part(workers):
        made = TrainingBackup.agreed([callback(tmp_path)], workers)
        with pytest.warns(UserWarning, match="backup of keras.callbacks.BackupAndRestore"):
            made.begin(model)

    values_of(each_of(1, part))
    assert keras_compat.initial_epoch(model) == 3
    for own, other in zip(model.get_weights(), saved.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)
