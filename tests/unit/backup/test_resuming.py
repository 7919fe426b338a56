"""A training of one process that is killed, or stopped by a signal, resumes bit for bit."""

import contextlib
import functools
import gc
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.backup.backup_files import BackupFiles
from tf_adasum.callbacks import BackupAndRestore
from tf_adasum.workers.workers import Workers

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")

BATCH, STEPS, EPOCHS = 4, 4, 3
INT, USR1, USR2 = signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2


def compiled(seed, strategy=None, steps_per_execution=1):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential([keras.layers.Input([3]), *layers])
        optimizer = keras.optimizers.Adam(0.1)
        model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    return model


class Decaying(keras.callbacks.Callback):
    """Changes the learning rate at both ends of an epoch and of a batch."""

    def _decay(self, number, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 0.9)

    on_epoch_begin = on_epoch_end = on_train_batch_begin = on_train_batch_end = _decay


class Stop(keras.callbacks.Callback):
    """Sends a signal at a moment of an epoch."""

    def __init__(self, moment, epoch=1, batch=1, number=USR1):
        super().__init__()
        self.at, self.number = (moment, epoch, batch), number
        self.epoch, self.seen = None, []

    def _come(self, moment, batch=1):
        self.seen.append((moment, self.epoch, batch))
        if self.seen[-1] == self.at:
            os.kill(os.getpid(), self.number)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self._come("epoch begins")

    def on_train_batch_end(self, batch, logs=None):
        self._come("batch", batch)

    def on_test_batch_end(self, batch, logs=None):
        self._come("validation", batch)

    def on_epoch_end(self, epoch, logs=None):
        self._come("epoch")

    def on_train_end(self, logs=None):
        self._come("end")


def fit(model, *callbacks, data="arrays"):
    random = np.random.default_rng(0)
    rows = BATCH * STEPS
    x, y = random.standard_normal([rows, 3]), random.standard_normal([rows, 2])
    given, length = (x, y), {"batch_size": BATCH}
    if data == "steps":  # epochs of three batches, so that a pass ends within an epoch
        length["steps_per_epoch"] = 3
    elif data == "dataset":  # of unknown length
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
        given, length = (rows.filter(lambda *row: True),), {}
    return model.fit(
        *given,
        **length,
        epochs=EPOCHS,
        verbose=0,
        validation_data=(x[:8], y[:8]),
        validation_batch_size=2,
        callbacks=callbacks,
    )


def assert_same_state(one, other):
    for each, expected in (one, other), (one.optimizer, other.optimizer):
        for variable, value in zip(each.variables, expected.variables, strict=True):
            np.testing.assert_array_equal(variable, value)


def stopped(fitted, stop, code=75):
    """What is seen in a training that a signal stops, or kills if it is SIGINT."""
    with pytest.raises(KeyboardInterrupt if stop.number == INT else SystemExit) as ended:
        fitted(stop)
    assert getattr(ended.value, "code", code) == code
    del ended  # the iterators of tf.data in its traceback take a minute to free if they are old
    gc.collect()
    assert signal.getsignal(USR1) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    return stop.seen


# The data, the interval of backups, the steps in one execution, whether there is a strategy, and
# whether the backup is the first callback.
CHAINS = {
    "epochs": ("arrays", "epoch", 1, True, False),
    "epochs, no strategy, backup first": ("arrays", "epoch", 1, False, True),
    "batches, backup first": ("arrays", 2, 1, True, True),
    "batches, steps_per_epoch": ("steps", 4, 1, True, False),
    "no strategy, no length": ("dataset", False, 1, False, False),
    "several steps in one execution": ("arrays", "epoch", 2, True, False),
}
# When a signal comes, in one start after the other, and the last that is seen before the stop.
PLACES = [
    ("batch", 0, 1, USR1),
    ("validation", 0, 1, USR1),
    ("validation", 0, 1, USR1),  # again in the epoch that begins with its validation
    ("batch", 1, STEPS - 1, INT),
    ("epoch", 1, 1, USR1),
    ("epoch begins", 2, 1, INT),
    ("batch", 2, 1, USR1),
    ("end", 2, 1, USR1),
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.slow
def test_it_resumes_as_unbroken(tmp_path, chain, capfd):
    """A backup holds what other callbacks change, wherever in the list it stands."""
    data, save_freq, steps_per_execution, is_ours, is_first = CHAINS[chain]
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"]) if is_ours else None

    def fitted(model, folder, *more):
        backup = BackupAndRestore(tmp_path / folder, save_freq=save_freq)
        callbacks = [backup, Decaying()] if is_first else [Decaying(), backup]
        return fit(model, *callbacks, *more, data=data)

    unbroken = compiled(1, strategy, steps_per_execution)
    expected = fitted(unbroken, "unbroken").history
    for seed, place in enumerate(PLACES, start=1):
        if place[:3] == ("batch", 1, STEPS - 1) and data == "steps":
            continue  # its epochs have a batch less
        model = compiled(seed, strategy, steps_per_execution)
        keras.utils.set_random_seed(1)
        seen = stopped(functools.partial(fitted, model, "broken"), Stop(*place))
        assert seen[-1] == place[:3], "it stops at the next place"
        where = f"SIGUSR1 on worker 0, with a backup in {tmp_path / 'broken'}: exit status 75"
        assert (where in capfd.readouterr().out) == (place[3] == USR1)
        history = model.history
        # Without a strategy Keras makes metrics in the first step: those before it are left out.
        whole = len(history.epoch) - (strategy is None and seed > 1)
        for name, values in history.history.items():
            ends = history.epoch[-1] + 1 if history.epoch else 0
            assert values[len(values) - whole :] == expected[name][ends - whole : ends]
    model = compiled(9, strategy, steps_per_execution)
    assert fitted(model, "broken").epoch == [], "nothing is left to train"
    assert_same_state(model, unbroken)
    assert not any(tmp_path.iterdir()), "the trainings have ended"


def test_before_the_first_batch_nothing_has_to_be_written(tmp_path, capfd):
    backup = BackupAndRestore(tmp_path / "broken")
    seen = stopped(functools.partial(fit, compiled(1), backup), Stop("epoch begins", 0))
    assert seen[-1] == ("epoch begins", 0, 1)
    assert not list((tmp_path / "broken").glob("*.backup"))
    assert "SIGUSR1 on worker 0, before the first batch: exit status 75" in capfd.readouterr().out


def test_saves_are_where_they_are_without_stops(tmp_path):
    """Of epochs of 4, saved after 3, 6, 9 batches …; stopped after 5, killed after 7 and 10."""
    for stop in Stop("batch", 1, 0), Stop("batch", 1, 2, INT), Stop("batch", 2, 1, INT):
        backup = BackupAndRestore(tmp_path, save_freq=3)
        stopped(functools.partial(fit, compiled(1), backup), stop)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["epoch-1-batch-2.backup", "epoch-2-batch-1.backup"]


def test_a_training_that_a_callback_ends_is_not_resumed(tmp_path):
    """The signal comes with the last batch, and the next start does not train on."""

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    model, again = compiled(1), compiled(2)
    with pytest.raises(SystemExit):
        fit(model, BackupAndRestore(tmp_path), Ends(), Stop("batch", 0, 2))
    assert fit(again, BackupAndRestore(tmp_path), Ends()).epoch == []
    assert_same_state(again, model)


def test_the_arguments_choose_signals_and_exit_code(tmp_path):
    own = []
    signal.signal(USR2, lambda number, frame: own.append(number))
    stop = Stop("batch", number=USR2)
    backup = BackupAndRestore(tmp_path / "1", on_signal="SIGUSR2", exit_code=3)
    stopped(functools.partial(fit, compiled(1), backup), stop, code=3)
    assert own == [USR2], "called after the backup"
    fit(compiled(1), BackupAndRestore(tmp_path / "2"), stop)
    fit(compiled(1), BackupAndRestore(tmp_path / "3", on_signal=None), stop)
    assert own == [USR2] * 3, "left alone"


@pytest.mark.parametrize("code", [0, 256, True])
def test_refuses_another_exit_code(tmp_path, code):
    with pytest.raises(ValueError, match=r"`exit_code` must be .* Received: exit_code="):
        BackupAndRestore(tmp_path, exit_code=code)


def test_signals_are_given_back_when_fit_fails(tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert signal.getsignal(USR1) != signal.SIG_DFL
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fit(compiled(1), BackupAndRestore(tmp_path), Fails())
    assert signal.getsignal(USR1) == signal.SIG_DFL


class Recording(keras.Model):
    """Notes the rows of each training step."""

    def __init__(self):
        super().__init__()
        self.dense, self.rows = keras.layers.Dense(1), []

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.rows += data[0][:, 0].numpy().astype(int).tolist()
        return super().train_step(data)


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize(("before", "now"), [(4, 8), (8, 4), (4, 6), (5, 24)])
def test_an_epoch_resumes_with_another_batch_size(before, now, as_dataset, tmp_path):
    """As with another number of workers: no row is left out, and few rows are used twice."""
    x = np.arange(24, dtype="float32")[:, None]
    done = 2  # batches, when the training is interrupted

    def rows_until(batch_size, callbacks):
        keras.utils.set_random_seed(3)
        model = Recording()
        model(x)
        model.compile("sgd", "mse", run_eagerly=True)
        data = {"x": x, "y": x, "batch_size": batch_size}
        if as_dataset:
            data = {"x": tf.data.Dataset.from_tensor_slices((x, x)).batch(batch_size)}
        with contextlib.suppress(InterruptedError):
            model.fit(**data, verbose=0, callbacks=callbacks)
        return model.rows

    def stop(batch, logs):
        if batch == done:
            raise InterruptedError

    backup = BackupAndRestore(tmp_path / "backup", save_freq=1)
    stopping = keras.callbacks.LambdaCallback(on_train_batch_begin=stop)
    first = rows_until(before, [backup, stopping])
    then = rows_until(now, [backup])
    assert len(first) == done * before
    assert sorted({*first, *then}) == x[:, 0].tolist()
    assert len(first) + len(then) == len(x) + done * before % now


@pytest.mark.parametrize("save_freq", [1, "epoch"])
def test_on_cluster_change_is_called_with_both_numbers_of_replicas(save_freq, tmp_path):
    """Once, and what they change stays."""
    calls, rates = [], []

    class ScalesWithReplicas(keras.callbacks.Callback):
        def on_cluster_change(self, before, now):
            calls.append((before, now))
            rate = self.model.optimizer.learning_rate
            self.model.optimizer.learning_rate = rate * now / before

        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))
            if not calls and len(rates) == 6:  # in the second epoch
                raise InterruptedError

    def train():
        backup = BackupAndRestore(tmp_path, save_freq=save_freq)
        with contextlib.suppress(InterruptedError):
            fit(compiled(0), backup, ScalesWithReplicas())

    train()
    assert calls == [] and len(rates) == 6
    files = BackupFiles(tmp_path)
    backup = files.newest(Workers(0, 1, None, None))
    backup.facts["replicas"] = 4
    files.write(backup)
    train()
    assert calls == [(4, 1)] and len(rates) > 6 + 4
    np.testing.assert_allclose(rates[6:], 0.1 / 4, rtol=1e-6)


@pytest.mark.parametrize("save_freq", [3, "epoch"])
def test_a_custom_loop_resumes_at_the_position_of_the_backup(tmp_path, save_freq, capsys):
    def train(folder, stops_at=None):
        model = compiled(seed=1)
        backup = BackupAndRestore(tmp_path / folder, save_freq=save_freq, delete_checkpoint=False)
        made = keras.callbacks.CallbackList([backup], model=model, epochs=EPOCHS)
        made.on_train_begin()
        position, seen = backup.position, []
        for epoch in range(position[0], EPOCHS):
            made.on_epoch_begin(epoch)
            for batch in range(position[1] if epoch == position[0] else 0, STEPS):
                if (epoch, batch) == stops_at:
                    return position, seen, None
                made.on_train_batch_begin(batch)
                rows = np.random.default_rng((epoch, batch)).normal(size=(BATCH, 3))
                model.train_on_batch(rows, rows[:, :2])
                seen.append((epoch, batch))
                made.on_train_batch_end(batch)
            made.on_epoch_end(epoch)
        made.on_train_end()
        return position, seen, model.get_weights()

    nothing, every, expected = train("unbroken")
    assert nothing == (0, 0) and len(every) == EPOCHS * STEPS
    train("broken", stops_at=(2, 1))
    position, seen, weights = train("broken")
    assert position == ((2, 1) if save_freq == 3 else (2, 0))
    assert seen == every[every.index(position) :]
    for actual, own in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(actual, own)
