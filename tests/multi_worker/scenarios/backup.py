"""What the worker processes do for `test_backup.py`: break off, go on, and the same unbroken."""

import pathlib
import warnings

import keras
from support.keras_versions import LossScaleOptimizer

from scenarios import callbacks
from scenarios.basics import on_replicas, random_data, use_rule
from scenarios.callbacks import Interrupted, rank_of
from tf_adasum.aggregation import rules
from tf_adasum.callbacks import BackupAndRestore
from tf_adasum.compat import keras as keras_compat
from tf_adasum.optimizers import DeltaAdasum

ROWS, BATCH, EPOCHS = 72, 12, 3  # six batches in an epoch


# Of each kind of training: the rule, and what makes the optimizer.
TRAININGS = {
    "adam": (
        "adasum",
        lambda: keras.optimizers.Adam(0.01, use_ema=True, gradient_accumulation_steps=2),
    ),
    "adacons": (rules.AdaCons(momentum=0.9), lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
    "delta": ("adasum", lambda: DeltaAdasum(keras.optimizers.Adam(0.02), local_steps=4)),
    "loss_scale": (
        "adasum",
        lambda: LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=4
        ),
    ),
}


def compiled_model(strategy, kind="adam", seed=1, steps_per_execution=1):
    """With dropout and statistics that differ between replicas."""
    rule, make = TRAININGS[kind]
    use_rule(strategy, rule)
    options = {"metrics": ["mae"], "steps_per_execution": steps_per_execution}
    return callbacks.compiled_model(strategy, seed, make, **options)


class Batches(keras.callbacks.Callback):
    """Which batches were trained, 100 epoch + batch; fails after one, the last of its step."""

    def __init__(self, fails_after=None):
        super().__init__()
        self.seen, self.fails_after = [], fails_after

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(100 * self.epoch + batch)
        if self.seen[-1] == self.fails_after:
            raise Interrupted


def fit(model, given, epochs=EPOCHS):
    given = [*given, keras.callbacks.LearningRateScheduler(lambda _, rate: 0.8 * rate)]
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": given}
    return model.fit(*random_data(ROWS), epochs=epochs, **options)


def backup_of(strategy, folder, plain=False, only_worker_0=False, **options):
    if only_worker_0 and rank_of(strategy) > 0:
        return []
    kind = keras.callbacks.BackupAndRestore if plain else BackupAndRestore
    return [kind(folder.format(rank=rank_of(strategy)), **options)]


def state_of(strategy, model):
    """All variables on each local replica."""
    states = keras_compat.aggregation_states_of(model.optimizer)
    variables = [*model.variables, *keras_compat.all_variables(model.optimizer)]
    for state in states:
        if state.rule_state:
            variables += state.rule_state.of_name.values()
    return on_replicas(strategy, variables, "variable ")


def results_of(strategy, model, history, batches):
    logs = {f"log {name}": values for name, values in history.history.items()}
    return {**state_of(strategy, model), **logs, "epochs": history.epoch, "batches": batches.seen}


def train_unbroken(strategy, folder, kind="adam", steps_per_execution=1, **options):
    model, batches = compiled_model(strategy, kind, 1, steps_per_execution), Batches()
    history = fit(model, [batches, *backup_of(strategy, folder, **options)])
    return results_of(strategy, model, history, batches)


def break_off(strategy, folder, at, kind="adam", steps_per_execution=1, **options):
    model = compiled_model(strategy, kind, 1, steps_per_execution)
    try:
        fit(model, [*backup_of(strategy, folder, **options), Batches(100 * at[0] + at[1])])
    except Interrupted:
        return {}
    raise AssertionError("not interrupted")


def resume(strategy, folder, kind="adam", steps_per_execution=1, epochs=EPOCHS, **options):
    """By a model with other weights, others on each worker."""
    model = compiled_model(strategy, kind, 5 + rank_of(strategy), steps_per_execution)
    batches = Batches()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = [batches, *backup_of(strategy, folder, **options)]
        history = fit(model, given, epochs)
    said = "\n".join(str(each.message) for each in caught if each.category is UserWarning)
    return {**results_of(strategy, model, history, batches), "warnings": said}


def break_off_and_go_on(strategy, folder, at, **options):
    break_off(strategy, folder, at, **options)
    return resume(strategy, folder, **options)


def second_fit_starts_at_the_beginning(strategy, folder):
    """Two trainings of one model, one after the other."""
    model = compiled_model(strategy)
    backup = backup_of(strategy, folder)
    return {str(number): fit(model, backup, epochs=2).epoch for number in range(2)} | {
        "left": pathlib.Path(folder).exists()
    }
