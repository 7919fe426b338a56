"""The driver of backups on one worker: before and after all other callbacks, and as in `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.backup import driver
from tf_adasum.compat import keras as keras_compat

pytestmark = pytest.mark.keras3_only("Keras 2 backs up all workers by itself")

BATCH, STEPS, EPOCHS = 4, 3, 4


def backup_in(folder, **options):
    return tf_adasum.callbacks.BackupAndRestore(folder, **options)


def compiled(seed, strategy=None):
    keras.utils.set_random_seed(seed)
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(2)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    return model


class BreakOff(keras.callbacks.Callback):
    """Fails after the last batch of an epoch has ended, or the epoch."""

    def __init__(self, epoch, after_it=False):
        super().__init__()
        self.epoch, self.after_it, self.current = epoch, after_it, None

    def on_epoch_begin(self, epoch, logs=None):
        self.current = epoch
        if self.after_it and epoch == self.epoch + 1:
            raise KeyboardInterrupt

    def on_train_batch_end(self, batch, logs=None):
        if not self.after_it and (self.current, batch) == (self.epoch, STEPS - 1):
            raise KeyboardInterrupt


class Decaying(keras.callbacks.Callback):
    """Changes the learning rate at both ends of an epoch, and after each batch."""

    def _decay(self, number, logs=None):
        rate = self.model.optimizer.learning_rate
        rate.assign(rate * 0.9)

    on_epoch_begin = on_epoch_end = on_train_batch_end = _decay


def fit(model, callbacks):
    random = np.random.default_rng(0)
    x, y = random.standard_normal([BATCH * STEPS, 3]), random.standard_normal([BATCH * STEPS, 2])
    return model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)


def state_of(model):
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize(
    "save_freq, is_ours",
    [("epoch", True), ("epoch", False), (2, True)],
    ids=["epochs", "epochs, no strategy", "batches"],
)
@pytest.mark.parametrize("after_it", [False, True], ids=["in an epoch", "after it"])
@pytest.mark.parametrize("is_first", [True, False], ids=["backup first", "backup last"])
def test_a_backup_holds_what_other_callbacks_change(
    save_freq, is_ours, after_it, is_first, tmp_path
):
    """Wherever in the list it stands; in steps of 2 one is made after an epoch's last batch."""
    strategy = tf_adasum.AdasumMirroredStrategy(["CPU:0"]) if is_ours else None

    def callbacks(folder, *more):
        backup = backup_in(tmp_path / folder, save_freq=save_freq)
        return [backup, Decaying(), *more] if is_first else [Decaying(), *more, backup]

    unbroken = compiled(1, strategy)
    expected = fit(unbroken, callbacks("unbroken")).history

    with pytest.raises(KeyboardInterrupt):
        fit(compiled(1, strategy), callbacks("broken", BreakOff(1, after_it)))
    model = compiled(2, strategy)
    keras.utils.set_random_seed(1)
    actual = fit(model, callbacks("broken")).history
    for own, other in zip(state_of(model), state_of(unbroken), strict=True):
        np.testing.assert_array_equal(own, other)
    for name, values in actual.items():
        assert values == expected[name][-len(values) :], name
    assert not any(tmp_path.iterdir()), "the trainings have ended"


def test_going_on_within_an_epoch_keeps_the_rhythm(tmp_path, monkeypatch):
    """Of 12 batches in epochs of 3, broken off after the sixth: saved after 2, 4, 6 …"""
    saved = []
    monkeypatch.setattr(
        driver.TrainingBackup,
        "_save",
        lambda self, model, *progress: saved.append(progress) or save(self, model, *progress),
    )
    fit(compiled(1), [backup_in(tmp_path / "unbroken", save_freq=2)])
    unbroken, saved[:] = list(saved), []
    assert unbroken == [(0, 2), (1, 1), (1, 3), (2, 2), (3, 1), (3, 3)]
    for epoch in 0, 1:
        with pytest.raises(KeyboardInterrupt):
            fit(compiled(1), [backup_in(tmp_path / "broken", save_freq=2), BreakOff(epoch)])
    fit(compiled(1), [backup_in(tmp_path / "broken", save_freq=2)])
    assert sorted(set(saved)) == unbroken


save = driver.TrainingBackup._save


class Noting(keras.callbacks.Callback):
    """Notes what it is called with."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def on_train_begin(self, logs=None):
        self.seen.append("other begins")


def test_it_is_called_around_all_others(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(driver.TrainingBackup, "begin", lambda self, model: seen.append("restored"))
    given = [Noting(seen), backup_in(tmp_path)]
    made = keras.callbacks.CallbackList(given, model=compiled(seed=1))
    names = [type(each).__name__ for each in made.callbacks]
    assert names == ["RestoreFirst", "Noting", "SaveLast"]
    made.set_model(made.model)
    assert names == [type(each).__name__ for each in made.callbacks], "once is enough"
    made.on_train_begin()
    assert seen == ["restored", "other begins"]


def test_saves_within_epochs_are_made_before_the_next_batch(tmp_path):
    for save_freq, may_be_later in [("epoch", True), (False, True), (2, False)]:
        model = compiled(seed=1)
        made = keras.callbacks.CallbackList([backup_in(tmp_path, save_freq=save_freq)], model=model)
        made._async_train = True  # as without a callback that wants to be called after batches
        made.on_train_begin()
        assert made._async_train == may_be_later
        made.on_train_end()


def test_keras_own_one_is_left_alone_on_one_worker(tmp_path):
    given = [keras.callbacks.BackupAndRestore(str(tmp_path))]
    assert keras.callbacks.CallbackList(given, model=compiled(seed=1)).callbacks == given


def test_called_by_itself_it_says_how(tmp_path):
    backup = backup_in(tmp_path)
    backup.set_model(compiled(seed=1))
    with pytest.raises(RuntimeError, match=r"CallbackList\(\[backup\], model=model\)"):
        backup.on_train_begin()


def test_in_a_custom_loop(tmp_path):
    first, second = compiled(seed=1), compiled(seed=2)
    for model in first, second:
        made = keras.callbacks.CallbackList(
            [backup_in(tmp_path, delete_checkpoint=False)], model=model
        )
        made.on_train_begin()
        if model is first:
            made.on_epoch_begin(0)
            made.on_epoch_end(0)
    assert keras_compat.initial_epoch(second) == 1
    for own, other in zip(state_of(second), state_of(first), strict=True):
        np.testing.assert_array_equal(own, other)
