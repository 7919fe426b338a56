"""Which callbacks a worker calls, and what they agree on; each worker is a thread."""

import keras
import pytest
from support.fake_training import model_of
from support.fake_workers import each_of

from tf_adasum.compat import keras as keras_compat
from tf_adasum.errors import see
from tf_adasum.workers import callbacks as worker_callbacks
from tf_adasum.workers.workers import Workers

BackupAndRestore = keras.callbacks.BackupAndRestore


class UsersBackup(BackupAndRestore):
    """One that a user has changed; it restores the epoch alone."""

    def on_train_begin(self, logs=None):
        keras_compat.set_initial_epoch(self.model, 3)


class Waiting(keras.callbacks.Callback):
    def __init__(self, said):
        super().__init__()
        self.same_on_all_workers = said


def callbacks_that_write(folder):
    return [
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.TensorBoard(str(folder / "board")),
        *([keras.callbacks.ModelCheckpoint("a.keras")] if keras_compat.BACKS_UP_ONE_WORKER else []),
    ]


def arranged_on(rank, count, callbacks):
    workers = Workers(rank, count, gather=None, add=None)
    return worker_callbacks.arranged(callbacks, model_of(workers), None)


def names(callbacks):
    """The classes of the callbacks, of those for worker 0 alone the user's."""
    return [type(getattr(callback, "callback", callback)).__name__ for callback in callbacks]


class TestList:
    FIRST, LAST = ["RestoreFirst", "FirstCallback"], ["LastCallback", "SaveLast"]

    @pytest.mark.parametrize("rank", [0, 1, 2])
    def test_what_writes_is_called_on_worker_0(self, rank, tmp_path):
        others = [keras.callbacks.EarlyStopping(), Waiting("x")]
        given = [*callbacks_that_write(tmp_path), *others]
        expected = names(others if rank else given)
        assert names(arranged_on(rank, 3, given)) == [*self.FIRST, *expected, *self.LAST]

    def test_without_callbacks_they_agree_too(self):
        assert names(arranged_on(1, 2, [])) == [*self.FIRST, *self.LAST]

    @pytest.mark.keras3_only("Keras 2 backs up all workers by itself")
    def test_keras_own_backup_is_driven_and_a_users_stays_on_worker_0(self, tmp_path):
        given = [BackupAndRestore(str(tmp_path)), UsersBackup(str(tmp_path))]
        assert names(arranged_on(0, 2, given)) == [*self.FIRST, "UsersBackup", *self.LAST]
        assert names(arranged_on(1, 2, given)) == [*self.FIRST, *self.LAST]

    def test_an_arranged_list_stays(self):
        once = arranged_on(0, 2, [])
        assert arranged_on(0, 2, once) == once

    def test_on_one_worker_the_list_stays(self, tmp_path):
        given = [*callbacks_that_write(tmp_path), BackupAndRestore(str(tmp_path)), Waiting("x")]
        assert arranged_on(0, 1, given) == given
        model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
        assert worker_callbacks.arranged(given, model, None) == given
        worker_callbacks.install()
        assert keras.callbacks.CallbackList(given, model=model).callbacks == given
        assert keras.callbacks.CallbackList(given).callbacks == given


def begun(workers, callbacks):
    """Returns the model and the list after `on_train_begin`."""
    model = model_of(workers)
    arranged = worker_callbacks.arranged(callbacks, model, None)
    for callback in arranged:
        callback.set_model(model)
    for callback in arranged:
        callback.on_train_begin()
    return model, arranged


class TestTogether:
    def test_all_compare_their_weights(self):
        def part(workers):
            return begun(workers, [])[0].distribute_strategy.checks

        assert each_of(2, part) == [1, 1]

    @pytest.mark.parametrize("stopping", [None, 0, 2])
    def test_one_stops_all_when_the_epoch_ends(self, stopping):
        def part(workers):
            model, arranged = begun(workers, [])
            model.stop_training = workers.rank == stopping
            for callback in arranged:
                callback.on_epoch_end(0)
            return model.stop_training

        assert each_of(3, part) == [stopping is not None] * 3

    def test_what_waits_for_others_has_to_be_on_all(self):
        def part(said):
            return lambda workers: begun(workers, [Waiting(each) for each in said[workers.rank]])

        assert not any(
            isinstance(each, Exception) for each in each_of(2, part([["a", "b"], ["a", "b"]]))
        )
        for said, received in [
            ([["a"], []], "worker 0: a; worker 1: none"),
            ([["a"], ["b"]], "worker 0: a; worker 1: b"),
        ]:
            for error in each_of(2, part(said)):
                assert isinstance(error, ValueError)
                assert str(error).endswith(
                    f"with the same arguments. Received: {received} {see('TFA-510')}"
                )

    @pytest.mark.keras3_only("Keras 2 backs up all workers by itself")
    @pytest.mark.parametrize("is_there", [True, False])
    def test_what_a_users_backup_restores_reaches_all(self, is_there, tmp_path):
        """Where worker 0 has something; worker 1's callback and folder do not matter."""

        def part(workers):
            folder = tmp_path / str(workers.rank)
            if workers.rank == (0 if is_there else 1):
                folder.mkdir()
            model, _ = begun(workers, [UsersBackup(str(folder))])
            return keras_compat.initial_epoch(model)

        # Where there is nothing, worker 0's own callback has set its epoch all the same.
        assert each_of(2, part) == [3, 3 if is_there else 0]
