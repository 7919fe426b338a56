"""Which callbacks a worker calls, and what they agree on; each worker is a thread."""

import keras
import pytest
from support.fake_training import model_of
from support.fake_workers import run_on_workers

from tf_adasum.errors import see
from tf_adasum.workers import callbacks as worker_callbacks
from tf_adasum.workers.workers import Workers

BackupAndRestore = keras.callbacks.BackupAndRestore


class UsersBackup(BackupAndRestore):
    """One that a user has changed."""


class Waiting(keras.callbacks.Callback):
    def __init__(self, settings):
        super().__init__()
        self.settings_to_compare = settings


def names_on(rank, count, callbacks):
    """The classes of the callbacks that a worker calls, the user's ones for those on worker 0."""
    model = model_of(Workers(rank, count, gather=None, add=None))
    arranged = worker_callbacks.arrange(callbacks, model, None)
    assert worker_callbacks.arrange(arranged, model, None) == arranged, "once is enough"
    return [type(getattr(callback, "callback", callback)).__name__ for callback in arranged]


@pytest.mark.keras3_only("Keras 2 backs up all workers by itself")
@pytest.mark.parametrize("rank", [0, 1])
def test_what_writes_is_called_on_worker_0_and_keras_own_backup_is_driven(rank, tmp_path):
    given = [
        BackupAndRestore(str(tmp_path)),
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.ModelCheckpoint("a.keras"),
        Waiting("x"),
    ]
    called = ["Waiting"] if rank else ["CSVLogger", "ModelCheckpoint", "Waiting"]
    expected = ["AverageStatistics", "RestoreFirst", *called, "AfterUserCallbacks", "SaveLast"]
    assert names_on(rank, 2, given) == expected


def test_on_one_worker_one_callback_is_added(tmp_path):
    assert names_on(0, 1, [BackupAndRestore(str(tmp_path))]) == [
        "AverageStatistics",
        "BackupAndRestore",
    ]


def begun(workers, callbacks):
    """The model after `on_train_begin` of all callbacks."""
    model = model_of(workers)
    arranged = worker_callbacks.arrange(callbacks, model, None)
    for callback in arranged:
        callback.set_model(model)
    for callback in arranged:
        callback.on_train_begin()
    return model, arranged


@pytest.mark.parametrize(
    ("settings", "received"),
    [
        ([["a", "b"], ["a", "b"]], None),
        ([["a"], []], "worker 0: a; worker 1: none"),
        ([["a"], ["b"]], "worker 0: a; worker 1: b"),
    ],
)
def test_what_waits_for_others_has_to_be_on_all(settings, received):
    def part(workers):
        begun(workers, [Waiting(each) for each in settings[workers.rank]])

    for error in run_on_workers(2, part):
        assert (type(error) is ValueError) == (received is not None)
        message = f"with the same arguments. Received: {received} {see('TFA-510')}"
        assert error is None or str(error).endswith(message)


@pytest.mark.keras3_only("Keras 2 backs up all workers by itself")
def test_a_backup_that_restores_one_worker_is_refused(tmp_path):
    def part(workers):
        begun(workers, [UsersBackup(str(tmp_path))])

    for error in run_on_workers(2, part):
        assert "Received: UsersBackup, a subclass of Keras's callback" in str(error)
