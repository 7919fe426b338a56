"""What workers do for test_replica_check.py: make replicas differ, and check them."""

import gc

import keras
import numpy as np
import tensorflow as tf
from support import stacks
from support.stacks import LossScaleOptimizer, copies_of

import tf_adasum
from scenarios.basics import random_data, use_rule
from scenarios.callbacks import rank_of
from tf_adasum import optimizers
from tf_adasum.callbacks import ReplicaCheck
from tf_adasum.compat import keras as keras_compat

RULES = {
    "adasum": "adasum",
    "adasum of the model": tf_adasum.rules.Adasum("model"),
    "adacons": tf_adasum.rules.AdaCons(rescale=True),
    "mean": "mean",
    "sum": "sum",
}
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam with EMA": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "lamb": lambda: optimizers.LAMB(0.01),
    "delta": lambda: optimizers.DeltaAdasum(keras.optimizers.Adam(0.01)),
    "delta, 3 local steps": lambda: optimizers.DeltaAdasum(
        keras.optimizers.Adam(0.01), local_steps=3
    ),
    "adascale": lambda: optimizers.AdaScale(keras.optimizers.SGD(0.01)),
    "loss scale": lambda: LossScaleOptimizer(keras.optimizers.SGD(0.01)),
}
if not stacks.IS_KERAS_2:
    OPTIMIZERS["accumulation"] = lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"]


def model_with_everything(strategy, optimizer="sgd", rule="adasum"):
    """Sparse and dense weights, frozen ones, statistics, seeds and metrics."""
    use_rule(strategy, RULES[rule])
    keras.utils.set_random_seed(1)
    frozen = keras.layers.Dense(4, name="frozen")
    frozen.trainable = False
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([3], dtype="int32"),
                keras.layers.Embedding(50, 4, name="embedding"),
                keras.layers.Flatten(),
                frozen,
                keras.layers.BatchNormalization(name="norm"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1, name="last"),
            ]
        )
        model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"])
    return model


def fit(model, steps=4, epochs=1, callbacks=(), **options):
    """Other ids and targets on every replica."""
    rows = 16 * steps
    ids = np.random.default_rng(0).integers(0, 50, [rows, 3])
    _, y = random_data(rows)
    options = {"batch_size": 16, "shuffle": False, "verbose": 0} | options
    return model.fit(ids, y, epochs=epochs, callbacks=[*callbacks], **options)


def message_of(function):
    """The name of the exception that it raises and its text; two empty ones for none."""
    try:
        function()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def copy_on(strategy, variable, replica):
    """The local `tf.Variable` of a replica; None where another worker has it."""
    devices = len(strategy.extended.worker_devices)
    worker, local = divmod(replica, devices)
    copies = copies_of(strategy, variable)
    return copies[local] if worker == rank_of(strategy) else None


class AssignAt(keras.callbacks.Callback):
    """Changes one number of one replica's copy of a variable, after a step."""

    def __init__(self, strategy, find, replica, step):
        super().__init__()
        self.strategy, self.find, self.replica, self.step = strategy, find, replica, step

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.step:
            spoil(self.strategy, self.find(self.model), self.replica)


def spoil(strategy, variable, replica):
    """Change a number of one replica's copy; return a function that takes it back."""
    copy = copy_on(strategy, variable, replica)
    if copy is None:
        return lambda: None
    value = np.array(copy.numpy())
    changed = value.copy()
    changed.flat[-1] += 1
    copy.assign(changed)
    return lambda: copy.assign(value)


VARIABLES = {
    "last": lambda model: model.get_layer("last").kernel,
    "embedding": lambda model: model.get_layer("embedding").embeddings,
    "frozen": lambda model: model.get_layer("frozen").kernel,
    "iteration": lambda model: model.optimizer.iterations,
}
if stacks.IS_KERAS_2:  # which does not say that all replicas share it
    del VARIABLES["iteration"]


def check_spoiled(strategy, replica):
    """Check after a training, and again when one replica's copy of a variable has changed.

    Returns:
        What was raised before; then for each variable its path and what was raised by default, of
        the model and of lists; and by `fit` with the last one.
    """
    model = model_with_everything(strategy)
    fit(model)
    results = {"before": message_of(strategy.check_replicas)}
    for name, find in VARIABLES.items():
        variable = find(model)
        others = [v for v in model.trainable_variables if v is not variable]
        take_back = spoil(strategy, variable, replica)
        results |= {
            f"{name} path": keras_compat.path_of(variable),
            f"{name} all": message_of(strategy.check_replicas),
            f"{name} model": message_of(lambda: strategy.check_model(model)),
            f"{name} list": message_of(
                lambda own=[*others, variable]: strategy.check_replicas(own)
            ),
            f"{name} others": message_of(lambda own=others: strategy.check_replicas(own)),
        }
        if name != [*VARIABLES][-1]:
            take_back()
            results[f"{name} again"] = message_of(strategy.check_replicas)
    return results | {"fit": message_of(lambda: fit(model))}


def callback_while_training(strategy, every, name, replica, step):
    """The callback, where a replica's copy changes in the second of three epochs of four steps.

    Returns:
        What was raised, and after how many steps.
    """
    model = model_with_everything(strategy)
    steps = []
    assign = AssignAt(strategy, VARIABLES[name], replica, step)
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(batch)
    )
    fit(model, epochs=1, callbacks=[ReplicaCheck(every)])
    raised = message_of(
        lambda: fit(model, epochs=3, callbacks=[count, assign, ReplicaCheck(every)])
    )
    return {"raised": raised, "steps": len(steps)}


def train_and_check(strategy, optimizer, rule, every):
    """Two epochs of 2 steps under the callback; then the default check; counts of checks."""
    model = model_with_everything(strategy, optimizer, rule)
    checks = []
    original = strategy.check_model
    strategy.check_model = lambda model: (checks.append(1), original(model))
    try:
        fit(model, steps=2, epochs=2, callbacks=[ReplicaCheck(every)])
    finally:
        del strategy.check_model
    strategy.check_replicas()
    strategy.check_model(model)
    return {"checks": len(checks)}


def check_values(strategy, differs):
    """Variables of every dtype with -0 and NaN, without a strategy where TensorFlow cannot."""
    rank = rank_of(strategy)
    results = {}
    for dtype in DTYPES:
        value = tf.cast([0, 1, 1, 0], dtype).numpy()
        if value.dtype.kind not in "iub":
            value[:2] = [0.0 * -1, np.nan]
        if differs and rank == 1:
            value.view("uint8")[0] ^= 1 if value.dtype.kind == "b" else 128
        variable = tf.Variable(value, name=dtype)
        results[dtype] = message_of(lambda own=[variable]: strategy.check_replicas(own))
    return results


def negative_zero(strategy):
    """0 and -0 are different bits."""
    value = tf.Variable([-0.0 if rank_of(strategy) else 0.0], name="zero")
    return {"raised": message_of(lambda: strategy.check_replicas([value]))}


def different_lists(strategy):
    """Each worker passes one variable more than the one before it; then one lives on worker 1."""
    variables = [tf.Variable([1.0]) for _ in range(1 + rank_of(strategy))]
    raised = message_of(lambda: strategy.check_replicas(variables))
    with strategy.scope():
        alive = tf.Variable([1.0])
    if rank_of(strategy):
        alive.assign([2.0])
    else:
        del alive
        gc.collect()  # TensorFlow 2.15 has it in a cycle
    return {"raised": raised, "alive on one": message_of(strategy.check_replicas)}


def callback_of_one_worker(strategy, every):
    """Pass the callback with another `every` on worker 1; None passes none there."""
    model = model_with_everything(strategy)
    callbacks = [ReplicaCheck("epoch")]
    if rank_of(strategy):
        callbacks = [ReplicaCheck(every)] if every else []
    return {"raised": message_of(lambda: fit(model, callbacks=callbacks))}


def fit_from_other_weights(strategy):
    """Worker 1 has other weights, as if it had loaded another file."""
    model = model_with_everything(strategy)
    if rank_of(strategy):
        for replica in range(strategy.num_replicas_in_sync):
            spoil(strategy, VARIABLES["embedding"](model), replica)
    return {"raised": message_of(lambda: fit(model))}
