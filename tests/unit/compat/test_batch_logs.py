"""Which callbacks read the logs of batches."""

import keras
import pytest

import tf_adasum
from tf_adasum.compat import keras as keras_compat

pytestmark = pytest.mark.keras3_only("Keras 2 averages the logs of each batch")


class Counts(keras.callbacks.Callback):
    @keras_compat.ignores_batch_logs
    def on_train_batch_end(self, batch, logs=None):
        pass


class Prints(Counts):
    def on_train_batch_end(self, batch, logs=None):
        print(logs)


class Begins(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass


def bar(verbose):
    callback = keras.callbacks.ProgbarLogger()
    callback.set_params({"verbose": verbose, "epochs": 1, "steps": 1})
    return callback


@pytest.mark.parametrize(
    "callback, kind, reads",
    [
        (Counts(), "train", False),
        (Prints(), "train", True),
        (Prints(), "test", False),
        (Begins(), "train", False),
        (bar(1), "train", True),
        (bar(2), "train", False),
        (keras.callbacks.LambdaCallback(on_train_batch_end=print), "train", True),
        (keras.callbacks.LambdaCallback(on_epoch_end=print), "train", False),
        (keras.callbacks.ModelCheckpoint("a.keras"), "train", False),
        (keras.callbacks.ModelCheckpoint("a.keras", save_freq=5), "train", True),
        (tf_adasum.callbacks.StragglerReport(), "train", False),
        (tf_adasum.callbacks.GainTracker(), "train", False),
        (tf_adasum.callbacks.OnFirstWorker(Prints()), "train", True),
        (tf_adasum.callbacks.OnFirstWorker(Begins()), "train", False),
    ],
)
def test_reads(callback, kind, reads):
    assert keras_compat.reads_batch_logs(callback, kind) is reads


@pytest.mark.parametrize("name", ["train_step", "compute_metrics", "get_metrics_result"])
def test_logs_of_own_methods_are_read(name):
    model = keras.Sequential([keras.layers.Input([1]), keras.layers.Dense(1)])
    assert not keras_compat.reads_logs_of(model, [Begins()], "fit")
    assert keras_compat.reads_logs_of(model, [Prints()], "fit")
    setattr(model, name, lambda *args, **kwargs: {"loss": 0.0})
    assert keras_compat.reads_logs_of(model, [Begins()], "fit")
