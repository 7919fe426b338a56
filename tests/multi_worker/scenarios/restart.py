"""What `test_restart.py` trains: each optimizer in `fit`, saved, restored, evaluated."""

import pathlib

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import copies_of

from scenarios.basics import random_data, use_rule
from scenarios.callbacks import Interrupt, Interrupted, rank_of
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import LAMB, AdaScale, DeltaAdasum

BATCH = 16  # of all replicas
STEPS = 7
SAVED_AFTER = 4  # not where three local steps end

# The rule that an optimizer needs, and what makes it.
OPTIMIZERS = {
    "adascale": ("mean", lambda: AdaScale(keras.optimizers.SGD(0.05, momentum=0.9))),
    "lamb": ("adasum", lambda: LAMB(0.02, weight_decay=0.01)),
    "delta": ("adasum", lambda: DeltaAdasum(keras.optimizers.Adam(0.02))),
    "delta_local": ("adasum", lambda: DeltaAdasum(keras.optimizers.Adam(0.02), local_steps=3)),
}
LOCAL_SLOTS = ("delta", "delta_local")  # have slots that differ from replica to replica


def compiled_model(strategy, name, seed, layers=()):
    """A linear model, or one of other layers, with an optimizer of the table and its rule."""
    rule, make = OPTIMIZERS[name]
    use_rule(strategy, rule)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        if not layers:
            model.build([None, 6])
        model.compile(optimizer=make(), loss="mse")
    return model


def fit(model, callbacks=(), first_step=0, epochs=1):
    """Epochs of the steps from `first_step` on."""
    x, y = (part[BATCH * first_step :] for part in random_data(BATCH * STEPS))
    options = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=[*callbacks], **options)


def state_of(strategy, model, prefix=""):
    """Weights and the optimizer's variables on each local replica, and AdaScale's estimates."""
    optimizer = model.optimizer
    estimates = {}
    if isinstance(optimizer, AdaScale):
        estimates = {
            "gain": optimizer.gain,
            "scale invariant steps": optimizer.scale_invariant_steps,
            "rate": optimizer.effective_learning_rate,
        }
    return {f"{prefix}{name}": value.numpy() for name, value in estimates.items()} | {
        f"{prefix}{kind} {index}.{local}": copy.numpy()
        for kind, variables in (
            ("weight", model.variables),
            ("slot", keras_compat.all_variables(optimizer)),
        )
        for index, variable in enumerate(variables)
        for local, copy in enumerate(copies_of(strategy, variable))
    }


def checkpoint_of(model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer)


class SaveAfter(keras.callbacks.Callback):
    """Every worker saves the model to a folder of its own."""

    def __init__(self, strategy, folder):
        super().__init__()
        self.strategy, self.folder = strategy, pathlib.Path(folder, str(rank_of(strategy)))

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == SAVED_AFTER:
            self.folder.mkdir(parents=True)
            self.model.save(self.folder / "model.keras")
            checkpoint_of(self.model).write(str(self.folder / "checkpoint"))
            self.state = state_of(self.strategy, self.model, "saved ")


def train_and_save(strategy, name, folder):
    """Return the state when it was saved, and that of the unbroken run at its end."""
    model = compiled_model(strategy, name, seed=1)
    save = SaveAfter(strategy, folder)
    fit(model, [save])
    return {**save.state, **state_of(strategy, model, "final ")}


def restore_and_resume(strategy, name, folder, form, from_worker=None):
    """Return the state that was restored, and that at the end.

    Args:
        strategy: the workers' strategy, of other processes than those that saved.
        name: of the optimizer.
        folder: where `train_and_save` saved.
        form: "model.keras" or "checkpoint".
        from_worker: whose file all workers restore; None, each its own.
    """
    rank = rank_of(strategy) if from_worker is None else from_worker
    path = pathlib.Path(folder, str(rank), form)
    # Other weights than the saved ones, and other ones on each worker.
    model = compiled_model(strategy, name, seed=2 + rank_of(strategy))
    with strategy.scope():
        if form == "model.keras":
            model = keras.saving.load_model(path)
        else:
            keras_compat.build(model.optimizer, model.trainable_variables)
            checkpoint_of(model).read(str(path)).assert_existing_objects_matched()
    restored = state_of(strategy, model, "saved ")
    fit(model, first_step=SAVED_AFTER)
    return {**restored, **state_of(strategy, model, "final ")}


def interrupted_with_backup(strategy, name, folder):
    """Two epochs, interrupted after the first; every worker has a backup folder of its own.

    Returns:
        The state at the interruption, "saved …", the one in which another model resumes from the
        backup, "begin …", and the one at its end, "final …".
    """
    backup = str(pathlib.Path(folder, str(rank_of(strategy))))
    model = compiled_model(strategy, name, seed=1)
    try:
        fit(model, [keras.callbacks.BackupAndRestore(backup), Interrupt(1)], epochs=2)
    except Interrupted:
        saved = state_of(strategy, model, "saved ")
    model = compiled_model(strategy, name, seed=2 + rank_of(strategy))
    states = []
    begin = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda *_: states.append(state_of(strategy, model, "begin "))
    )
    history = fit(model, [keras.callbacks.BackupAndRestore(backup), begin], epochs=2)
    final = state_of(strategy, model, "final ")
    return {"epochs": history.epoch, **saved, **states[0], **final}


def unbroken(strategy, name):
    """The same two epochs without interruption."""
    model = compiled_model(strategy, name, seed=1)
    fit(model, epochs=2)
    return state_of(strategy, model, "final ")


def flat_weights(strategy, model):
    """The weights of each local replica, [replicas, n]."""
    copies = (copies_of(strategy, v) for v in model.variables)
    return np.array(
        [np.concatenate([v.numpy().ravel() for v in own]) for own in zip(*copies, strict=True)]
    )


def fit_and_evaluate(strategy):
    """Two epochs of five steps with three local steps each, then `evaluate` and `predict`.

    Returns:
        The weights of the local replicas before each validation; and after a single step, before
        and after `evaluate` and `predict`; what these return, and what a model of those weights
        returns without a strategy.
    """
    model = compiled_model(strategy, "delta_local", seed=1)
    x, y = random_data(BATCH * 5, seed=3)
    results, options = {}, {"batch_size": BATCH, "verbose": 0}

    def keep(logs=None):
        results[f"validation {len(results)}"] = flat_weights(strategy, model)

    callback = keras.callbacks.LambdaCallback(on_test_begin=keep)
    model.fit(x, y, epochs=2, validation_data=(x, y), callbacks=[callback], **options)
    alone = keras.Sequential([keras.layers.Input([6]), keras.layers.Dense(1)])
    alone.compile(loss="mse")
    for name, arguments in ("evaluate", (x, y)), ("predict", (x,)):
        model.train_on_batch(x[:BATCH], y[:BATCH])
        results[f"before {name}"] = flat_weights(strategy, model)
        results[name] = getattr(model, name)(*arguments, **options)
        results[f"after {name}"] = flat_weights(strategy, model)
        alone.set_weights(model.get_weights())
        results[f"{name} alone"] = getattr(alone, name)(*arguments, **options)
    return results


ROWS_OF_TABLE, IDS = 50, 3


class DenseTable(keras.layers.Layer):
    """An embedding whose gradient is dense."""

    def build(self, shape):
        self.table = self.add_weight(shape=[ROWS_OF_TABLE, 2], name="table")

    def call(self, ids):
        return tf.matmul(tf.one_hot(ids, ROWS_OF_TABLE), self.table)


def fit_embedding(strategy, name):
    """The weights after six steps with an `Embedding`, and with the same table made dense."""
    random = np.random.default_rng(4)
    ids = random.integers(0, ROWS_OF_TABLE, [BATCH * 6, IDS])
    y = np.sin(ids.sum(axis=1, keepdims=True)).astype("float32")
    table = random.standard_normal([ROWS_OF_TABLE, 2]).astype("float32")
    results = {}
    for kind, layer in [
        ("sparse", keras.layers.Embedding(ROWS_OF_TABLE, 2)),
        ("dense", DenseTable()),
    ]:
        layers = [keras.layers.Input([IDS], dtype="int32"), layer, keras.layers.Flatten()]
        model = compiled_model(strategy, name, seed=1, layers=layers)
        start = [table, *[0.1 + 0 * own for own in model.get_weights()[1:]]]
        model.set_weights(start)
        model.fit(ids, y, batch_size=BATCH, shuffle=False, verbose=0)
        results[kind] = flat_weights(strategy, model)
    return results | {"start": np.concatenate([each.ravel() for each in start])}
