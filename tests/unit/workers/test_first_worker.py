"""Callbacks for worker 0 alone: which they are, and what they may do there."""

import warnings

import keras
import pytest
from support.fake_training import model_of

from tf_adasum.compat import one_worker
from tf_adasum.errors import see
from tf_adasum.workers import callbacks as worker_callbacks
from tf_adasum.workers.first_worker import FirstWorkerOnly, is_for_first_worker
from tf_adasum.workers.workers import Workers

Callback = keras.callbacks.Callback


def of_package(name, *bases):
    """A class as that package would define it."""
    return type("Metrics", bases or (Callback,), {"__module__": name})


class Own(Callback):
    only_on_first_worker = True


class OwnOnAll(Callback):
    only_on_first_worker = False


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (of_package("wandb.integration.keras.callbacks.metrics_logger"), True),
        (of_package("__main__", of_package("comet_ml.callbacks.keras")), True),
        (of_package("mlflow_of_somebody"), False),
        (of_package("ray.train.tensorflow.keras"), False),  # its reports wait for all workers
        (of_package("__main__", Own), True),
        (OwnOnAll, False),
        (keras.callbacks.EarlyStopping, False),
    ],
)
def test_which_they_are(cls, expected):
    assert is_for_first_worker(cls()) is expected


class Recorder(Own):
    """Keeps what it receives; `stops` when a batch of this number ends."""

    def __init__(self, stops=None):
        super().__init__()
        self.stops, self.received = stops, []

    def set_params(self, params):
        super().set_params(params)
        self.received.append(params)

    def on_train_batch_end(self, batch, logs=None):
        self.received.append((batch, logs, one_worker.is_alone()))
        if batch == self.stops:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.received.append((epoch, logs))


def called_on_worker_0(callback):
    """The model, and what worker 0 of two calls for the callback."""
    model = model_of(Workers(0, 2, gather=None, add=None))
    arranged = worker_callbacks.arrange([callback], model, None)
    (called,) = (each for each in arranged if isinstance(each, FirstWorkerOnly))
    called.set_model(model)
    called.set_params({"epochs": 2})
    return model, called


def test_worker_0_alone_calls_it_with_what_all_receive():
    recorder = Recorder()
    model, called = called_on_worker_0(recorder)
    assert recorder.model is model and recorder.params == {"epochs": 2}
    called.on_train_begin()
    called.on_train_batch_end(0, logs={"loss": 1.0})
    called.on_epoch_end(0, {"loss": 1.0})
    assert recorder.received == [{"epochs": 2}, (0, {"loss": 1.0}, True), (0, {"loss": 1.0})]
    assert called.stops is None and called.received is recorder.received  # read through
    assert not one_worker.is_alone()


def test_it_stops_a_training_at_the_end_of_an_epoch():
    """The others would wait for worker 0's next step."""
    model, called = called_on_worker_0(Recorder(stops=1))
    called.on_train_batch_end(0, {})
    with pytest.warns(UserWarning, match="^Recorder set model.stop_training within an epoch"):
        called.on_train_batch_end(1, {})
    assert not model.stop_training
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes once
        called.on_train_batch_end(1, {})
    called.on_epoch_end(0, {})
    assert model.stop_training
    model.stop_training = False
    called.set_model(model)  # the next training
    called.on_epoch_end(0, {})
    assert not model.stop_training


class Predicts(Own):
    def on_epoch_end(self, epoch, logs=None):
        one_worker.refuse("model.predict")


def test_what_takes_all_workers_is_refused_by_name():
    _, called = called_on_worker_0(Predicts())
    message = r"^model\.predict needs all workers, but Predicts runs on worker 0 only"
    with pytest.raises(RuntimeError, match=message) as caught:
        called.on_epoch_end(0, {})
    received = f"Received: model.predict in Predicts.on_epoch_end {see('TFA-507')}"
    assert str(caught.value).endswith(received)
    one_worker.refuse("model.predict")  # elsewhere it is not


def test_what_all_have_stopped_stays_stopped():
    model, called = called_on_worker_0(Recorder(stops=0))
    model.stop_training = True  # by a callback that all workers have
    called.on_train_batch_end(0, {})
    assert model.stop_training
