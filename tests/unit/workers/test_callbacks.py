"""What callbacks of workers agree on; each worker is a thread.

tests/multi_worker/test_callbacks.py shows which of them a worker calls.
"""

import keras
import pytest
from support.fake_training import model_of
from support.fake_workers import run_on_workers

from tf_adasum.errors import see
from tf_adasum.workers import callbacks as worker_callbacks

BackupAndRestore = keras.callbacks.BackupAndRestore


class UsersBackup(BackupAndRestore):
    """One that a user has changed."""


class Waiting(keras.callbacks.Callback):
    def __init__(self, settings):
        super().__init__()
        self.settings_to_compare = settings


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
