"""OnFirstWorker: its argument. tests/unit/workers/test_first_worker.py tests what it does."""

import keras
import numpy as np
import pytest
from support import keras_versions

from tf_adasum import callbacks
from tf_adasum.callbacks import OnFirstWorker

BACKUP = [] if keras_versions.IS_KERAS_2 else [callbacks.BackupAndRestore("backup")]


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.EarlyStopping(),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
        keras.callbacks.ReduceLROnPlateau(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.BackupAndRestore("backup"),
        callbacks.ReplicaCheck(),
        callbacks.OrthogonalityTracker(),
        *BACKUP,
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_all_workers_need_are_refused(callback):
    with pytest.raises(ValueError, match=f"^{type(callback).__name__} has to run on all workers"):
        OnFirstWorker(callback)


@pytest.mark.parametrize("wrong", [None, print, keras.callbacks.CSVLogger])
def test_other_objects_than_callbacks_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must be a keras\.callbacks\.Callback\. Received:"):
        OnFirstWorker(wrong)


def test_without_a_strategy_it_changes_nothing(tmp_path):
    """Each of its hooks is called as often, with the same, and its attributes are there."""

    class Recorder(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.called = []

        def on_train_batch_end(self, batch, logs=None):
            self.called.append(("batch", batch, logs))

        def on_epoch_end(self, epoch, logs=None):
            self.called.append(("epoch", epoch, logs))
            self.model.stop_training = epoch == 1

        def on_test_end(self, logs=None):
            self.called.append(("test", logs))

    recorders = [Recorder(), OnFirstWorker(Recorder())]
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.ones([4, 2])
    for recorder in recorders:
        options = {"batch_size": 2, "epochs": 5, "validation_split": 0.5, "verbose": 0}
        history = model.fit(x, x[:, :1], callbacks=[recorder], **options)
        assert history.epoch == [0, 1]
        assert recorder.model is model and recorder.params["epochs"] == 5
    assert len(recorders[0].called) == 6
    assert recorders[1].called == recorders[0].called
