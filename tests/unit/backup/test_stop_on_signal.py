"""A signal stops a training of one process, and the next one goes on as if it had not."""

import os
import signal
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.backup.stop_on_signal import StopOnSignal
from tf_adasum.health.graceful_stop import GracefulStop

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")

BATCH, STEPS, EPOCHS = 4, 4, 3
USR1 = signal.SIGUSR1


@pytest.fixture(autouse=True)
def as_before():
    """Other tests may have left a custom loop without an end."""
    numbers = (USR1, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def compiled(seed, together=1, strategy=None):
    keras.utils.set_random_seed(seed)
    with (strategy or tf.distribute.get_strategy()).scope():
        return made(together)


def made(together):
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential([keras.layers.Input([3]), *layers])
    optimizer = keras.optimizers.Adam(0.1)
    model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=together)
    return model


class Stop(keras.callbacks.Callback):
    """Sends a signal at a moment of an epoch."""

    def __init__(self, moment, epoch=1, batch=1, number=USR1):
        super().__init__()
        self.moment, self.at, self.number = moment, (epoch, batch), number
        self.epoch, self.seen = None, []

    def _come(self, moment, batch):
        self.seen.append((moment, self.epoch, batch))
        if (moment, self.epoch, batch) == (self.moment, *self.at):
            os.kill(os.getpid(), self.number)

    def on_train_begin(self, logs=None):
        self._come("training", 1)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self._come("epoch begins", 1)

    def on_train_batch_end(self, batch, logs=None):
        self._come("batch", batch)

    def on_test_batch_end(self, batch, logs=None):
        self._come("validation", batch)

    def on_epoch_end(self, epoch, logs=None):
        self._come("epoch", 1)

    def on_train_end(self, logs=None):
        self._come("end", 1)


class Decaying(keras.callbacks.Callback):
    """Changes the learning rate at both ends of an epoch, and before each batch."""

    def _decay(self, number, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 0.9)

    on_epoch_begin = on_epoch_end = on_train_batch_begin = _decay


def fit(model, folder, *callbacks, data="arrays", save_freq="epoch", **options):
    random = np.random.default_rng(0)
    rows = BATCH * STEPS
    x, y = random.standard_normal([rows, 3]), random.standard_normal([rows, 2])
    given, length = (x, y), {"batch_size": BATCH}
    if data == "steps":  # epochs of three batches, so that a pass ends within an epoch
        length["steps_per_epoch"] = 3
    elif data == "dataset":  # of unknown length
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        given, length = (rows.filter(lambda *row: True),), {}
    backup = tf_adasum.callbacks.BackupAndRestore(folder, save_freq=save_freq, **options)
    return model.fit(
        *given,
        **length,
        epochs=EPOCHS,
        verbose=0,
        validation_data=(x[:8], y[:8]),
        validation_batch_size=2,
        callbacks=[Decaying(), backup, *callbacks],
    )


def state_of(model):
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


def stopped(model, folder, stop, code=75, **options):
    with pytest.raises(SystemExit) as ended:
        fit(model, folder, stop, **options)
    assert ended.value.code == code
    assert signal.getsignal(USR1) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return stop.seen


CHAINS = {
    "epochs": {},
    "batches, steps_per_epoch": {"save_freq": 4, "data": "steps"},
    "no strategy, no length": {"save_freq": False, "data": "dataset"},
    "several steps in one execution": {"together": 2},
}
# Where the signal comes, in one start after the other, and the last that is seen before the stop.
PLACES = [
    ("batch", 0, 1),
    ("validation", 0, 1),
    ("validation", 0, 1),  # again in the epoch that begins with its validation
    ("epoch", 1, 1),
    ("batch", 2, 1),
    ("end", 2, 1),
]


@pytest.mark.parametrize("chain", CHAINS)
def test_it_goes_on_as_unbroken(tmp_path, chain, capfd):
    options = dict(CHAINS[chain])
    together = options.pop("together", 1)
    strategy = None if "no strategy" in chain else tf_adasum.AdasumMirroredStrategy(["CPU:0"])
    unbroken = compiled(1, together, strategy)
    expected = fit(unbroken, tmp_path / "unbroken", **options)
    for seed, place in enumerate(PLACES, start=1):
        model = compiled(seed, together, strategy)
        keras.utils.set_random_seed(1)
        seen = stopped(model, tmp_path / "broken", Stop(*place), **options)
        assert seen[-1] == place, "it stops at the next place"
        out = capfd.readouterr().out
        assert f"SIGUSR1 on worker 0, with a backup in {tmp_path / 'broken'}: exit status 75" in out
        history = model.history
        # Without a strategy Keras makes metrics in the first step: those before it are left out.
        whole = len(history.epoch) - (strategy is None and seed > 1)
        for name, values in history.history.items():
            ends = history.epoch[-1] + 1 if history.epoch else 0
            assert values[len(values) - whole :] == expected.history[name][ends - whole : ends]
    model = compiled(9, together, strategy)
    assert fit(model, tmp_path / "broken", **options).epoch == [], "nothing is left to train"
    for own, other in zip(state_of(model), state_of(unbroken), strict=True):
        np.testing.assert_array_equal(own, other)
    assert not any(tmp_path.iterdir()), "the trainings have ended"


def test_before_the_first_batch_nothing_has_to_be_written(tmp_path, capfd):
    seen = stopped(compiled(1), tmp_path / "broken", Stop("epoch begins", 0))
    assert seen[-1] == ("epoch begins", 0, 1)
    assert not list((tmp_path / "broken").glob("*.backup"))
    assert "SIGUSR1 on worker 0, before the first batch: exit status 75" in capfd.readouterr().out


def test_saves_after_it_are_where_they_are_without(tmp_path):
    """Of epochs of 4, saved after 3, 6, 9 batches …, stopped after 5."""
    stopped(compiled(1), tmp_path, Stop("batch", 1, 0), save_freq=3)
    with pytest.raises(KeyboardInterrupt):
        fit(compiled(1), tmp_path, Interrupt(1, 2), save_freq=3)
    assert "epoch-1-batch-2.backup" in {path.name for path in tmp_path.iterdir()}


class Interrupt(Stop):
    def __init__(self, epoch, batch):
        super().__init__("batch", epoch, batch, signal.SIGINT)


def test_a_training_that_a_callback_ends_is_not_resumed(tmp_path):
    """The signal comes with the last batch, and the next start does not train on."""

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    model = compiled(1)
    with pytest.raises(SystemExit):
        fit(model, tmp_path, Ends(), Stop("batch", 0, 2))
    again = compiled(2)
    assert fit(again, tmp_path, Ends()).epoch == []
    for own, other in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)


def test_what_the_arguments_say(tmp_path):
    own = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: own.append(number))
    try:
        stop = Stop("batch", number=signal.SIGUSR2)
        stopped(compiled(1), tmp_path / "1", stop, code=3, on_signal="SIGUSR2", exit_code=3)
        assert own == [signal.SIGUSR2], "called after the backup"
        fit(compiled(1), tmp_path / "2", Stop("batch", number=signal.SIGUSR2))
        fit(compiled(1), tmp_path / "3", Stop("batch", number=signal.SIGUSR2), on_signal=None)
        assert own == [signal.SIGUSR2] * 3, "left alone"
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("code", [0, 256, -1, 75.0, True, None])
def test_refuses_another_exit_code(tmp_path, code):
    with pytest.raises(ValueError, match=r"`exit_code` must be .* Received: exit_code="):
        tf_adasum.callbacks.BackupAndRestore(tmp_path, exit_code=code)


def test_signals_are_given_back_when_fit_fails(tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert signal.getsignal(USR1) != signal.SIG_DFL
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fit(compiled(1), tmp_path, Fails())
    assert signal.getsignal(USR1) == signal.SIG_DFL


@pytest.mark.parametrize("meeting, stops", [(1, True), (2, False), (None, False)])
def test_a_signal_that_comes_while_workers_meet_at_the_end(monkeypatch, meeting, stops):
    """It stops the training; one too late for that does what it would have done without it."""
    stopped_at, meetings, called = [], [], []
    signal.signal(USR1, lambda number, frame: called.append(number))

    def any_of(value):
        meetings.append(value)
        if len(meetings) == meeting:  # while it waits for the others
            os.kill(os.getpid(), USR1)
        return value

    workers = types.SimpleNamespace(
        health=types.SimpleNamespace(stopping=GracefulStop(0, 2)), any=any_of
    )
    on_signal = types.SimpleNamespace(numbers=(USR1,), exit_code=75, leaves_handlers=False)
    stop = StopOnSignal(types.SimpleNamespace(on_signal=on_signal), workers, None)
    monkeypatch.setattr(stop, "_stop", lambda model, place: stopped_at.append(place))
    stop.begin()
    stop.at_end(None, 3)
    assert stopped_at == ([(0, {"epoch": 3})] if stops else [])
    assert called == []
    if not stops:
        stop.end()
        stop.end()
        assert called == ([USR1] if meeting else [])


def test_in_a_custom_loop(tmp_path):
    first, second = compiled(seed=1), compiled(seed=2)
    options = {"delete_checkpoint": False}
    with pytest.raises(SystemExit):
        made = keras.callbacks.CallbackList(
            [tf_adasum.callbacks.BackupAndRestore(tmp_path, **options)], model=first, epochs=3
        )
        made.on_train_begin()
        made.on_epoch_begin(0)
        for batch in range(3):
            made.on_train_batch_begin(batch)
            made.on_train_batch_end(batch)
            if batch == 1:
                os.kill(os.getpid(), USR1)
    made = keras.callbacks.CallbackList(
        [tf_adasum.callbacks.BackupAndRestore(tmp_path, **options)], model=second
    )
    made.on_train_begin()
    for own, other in zip(state_of(second), state_of(first), strict=True):
        np.testing.assert_array_equal(own, other)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0-batch-2.backup"]
    made.on_train_end()
    assert signal.getsignal(USR1) == signal.SIG_DFL
