"""What the worker processes do: each function trains or reduces something and returns arrays.

Every function takes the strategy first; `None` is one process without any.
"""

import contextlib
import errno
import os
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import LossScaleOptimizer, PyDataset, copies_of

from tf_adasum import optimizers
from tf_adasum.aggregation import Scheme, rules
from tf_adasum.compat import tensorflow as tensorflow_compat

SGD, Adam, AdamW = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.AdamW
Schedule = keras.optimizers.schedules.ExponentialDecay
OPTIMIZERS = {
    "sgd": lambda: SGD(0.01),
    "momentum": lambda: SGD(Schedule(0.1, 1, 0.5), momentum=0.9),
    "adam": lambda: Adam(0.1, weight_decay=0.1, clipnorm=1.0),
    "ema": lambda: Adam(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "accumulate": lambda: Adam(0.1, gradient_accumulation_steps=2),
    "scaled": lambda: LossScaleOptimizer(SGD(0.05, momentum=0.9), initial_scale=64.0),
    "lamb": lambda: optimizers.LAMB(0.1, weight_decay=0.01),
    "adascale": lambda: optimizers.AdaScale(SGD(0.1, momentum=0.9), smoothing=0.5),
    "adascale accumulate": lambda: optimizers.AdaScale(
        SGD(0.1, momentum=0.9, gradient_accumulation_steps=2), smoothing=0.5
    ),
    "delta": lambda: optimizers.DeltaAdasum(Adam(0.1)),
    "delta of nadam": lambda: optimizers.DeltaAdasum(keras.optimizers.Nadam(0.1)),
    "delta of 2": lambda: optimizers.DeltaAdasum(AdamW(0.1, weight_decay=0.1), local_steps=2),
}
RULES = {
    "adasum of the model": rules.Adasum("model"),
    "adacons of the paper": rules.AdaCons(rescale=False),
    "adacons variable": rules.AdaCons(0.9, "variable", rescale=True),
    "adacons groups": rules.AdaCons(0.9, {".*/(kernel|embeddings)": "kernels"}, rescale=True),
}


def use_rule(strategy, rule, **options):
    """Give a strategy another rule; outside tests a strategy has one scheme for life.

    Args:
        strategy: the workers' strategy. A scenario begins with the rule Adasum. None has no rule.
        rule: a rule, its name, or a name in `RULES`.
        options: of the scheme.
    """
    if strategy is None:
        return
    strategy._aggregation = rules.get(RULES.get(rule, rule) if isinstance(rule, str) else rule)
    strategy._scheme = Scheme.from_arguments(
        strategy._aggregation, strategy.num_replicas_in_sync, **options
    )
    tensorflow_compat.cross_device_ops(strategy.extended).scheme = strategy._scheme


def over(strategy, transport):
    """A context: a transport carries the gradients of what is traced in it; None: TensorFlow's."""
    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    return unittest.mock.patch.object(collectives, "transport", transport)


def scope(strategy):
    return strategy.scope() if strategy else contextlib.nullcontext()


def message_of(call):
    """The type and text of the error that a call raises; "" without one."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def random_data(rows, features=6, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal([rows, features]).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")
    return x, y


def build_mlp(features=6, **kernel):
    return keras.Sequential(
        [
            keras.layers.Input([features]),
            keras.layers.Dense(8, activation="tanh", **kernel),
            keras.layers.Dense(1),
        ]
    )


def compiled(strategy, make, optimizer=SGD, loss="mse", seed=1, **options):
    """A model that is made and compiled in the scope, by functions.

    Args:
        strategy: the workers' strategy; None for one process.
        make: returns the layers of a Sequential model, or another model.
        optimizer: returns the optimizer.
        loss: of `compile`.
        seed: set before the layers are made.
        options: further ones of `compile`.
    """
    keras.utils.set_random_seed(seed)
    with scope(strategy):
        made = make()
        model = made if isinstance(made, keras.Model) else keras.Sequential(made)
        model.compile(optimizer(), loss, **options)
    return model


def dense(features, *units):
    """A function that makes the layers of a network without activations."""
    return lambda: [keras.layers.Input([features]), *map(keras.layers.Dense, units)]


def on_replicas(strategy, variables, name=""):
    """Return each local replica's copy of each variable, as "name index.local"."""
    return {
        f"{name}{index}.{local}": copy.numpy()
        for index, variable in enumerate(variables)
        for local, copy in enumerate(copies_of(strategy, variable))
    }


def read_as(operation, value, **options):
    """A variable of which each replica has its own; read, it is their "SUM" or "MEAN"."""
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation[operation],
        **options,
    )


class Batches(PyDataset):
    """The batches of a list."""

    def __init__(self, batches, **options):
        super().__init__(**options)
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def weights_of(model):
    return {f"weight{index}": value for index, value in enumerate(model.get_weights())}


LOSSES = {
    "mean": lambda: keras.losses.MeanSquaredError(),
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "function": lambda: lambda y, p: tf.reduce_mean(tf.square(y - p), axis=-1),
}


def train_on_identical_data(strategy, replicas, loss, l2=None, clipnorm=None, run_eagerly=False):
    """Every replica gets the same rows in every step."""
    own_x, own_y = random_data(32)
    # Of each global batch every replica gets one block of eight rows, the same for all.
    x, y = (
        np.concatenate([block for block in np.split(values, 4) for _ in range(replicas)])
        for values in (own_x, own_y)
    )
    model = compiled(
        strategy,
        lambda: build_mlp(kernel_regularizer=l2 and keras.regularizers.L2(l2)),
        lambda: SGD(0.01, clipnorm=clipnorm),
        LOSSES[loss](),
        run_eagerly=run_eagerly,
    )
    history = model.fit(x, y, batch_size=8 * replicas, epochs=3, shuffle=False, verbose=0).history
    return {"loss": history["loss"], **weights_of(model)}


def train_on_disjoint_features(strategy):
    """One step of a linear model; replica r's rows have nothing but feature r."""
    replicas = strategy.num_replicas_in_sync
    x = np.repeat(np.eye(replicas, dtype="float32"), 4, axis=0)
    y = np.arange(1, 4 * replicas + 1, dtype="float32")[:, None]
    last = {"use_bias": False, "kernel_initializer": "zeros"}
    layers = [keras.layers.Input([replicas]), keras.layers.Dense(1, **last)]
    model = compiled(strategy, lambda: layers, lambda: SGD(1.0))
    model.fit(x, y, batch_size=4 * replicas, epochs=1, shuffle=False, verbose=0)
    return weights_of(model)


def reduction(strategy, gradients, marker):
    """A function that combines given gradients ``[replicas, ...]``."""

    @tf.function(autograph=False)
    def step():
        def replica_step():
            context = tf.distribute.get_replica_context()
            own = [tf.gather(gradient, context.replica_id_in_sync_group) for gradient in gradients]
            return context.all_reduce("SUM", own, options=marker)

        return strategy.run(replica_step)

    return step


def local_results(strategy, combined):
    """Return each local replica's results, as float64."""
    return {
        f"{number}.{local}": tf.cast(copy, tf.float64).numpy()
        for number, value in enumerate(combined)
        for local, copy in enumerate(strategy.experimental_local_results(value))
    }


def reduce_gradients(
    strategy, rule="adasum", bytes_per_pack=0, not_finite=None, eager=False, **options
):
    """Combine `known_gradients`; return every local replica's result.

    Args:
        strategy: the workers' strategy.
        rule: a rule, or its name.
        bytes_per_pack: of the buckets.
        not_finite: (replica, value): where the last variable's gradient holds one such number.
        eager: whether no tf.function reduces them.
        options: of the scheme.
    """
    use_rule(strategy, rule, **options)
    gradients = known_gradients(strategy.num_replicas_in_sync, not_finite)
    marker = tensorflow_compat.GradientOptions(bytes_per_pack=bytes_per_pack)
    step = reduction(strategy, gradients, marker)
    return local_results(strategy, (step.python_function if eager else step)())


def known_gradients(replicas, not_finite=None):
    """Tensors [replicas, ...] of several shapes and all dtypes, the same on every worker."""
    generator = np.random.default_rng(4)
    shapes = [([3, 5], "float32"), ([], "float32"), ([1], "float64"), ([1801], "float32")]
    shapes += [([0, 4], "float32"), ([17], "float16"), ([2, 2, 2], "bfloat16"), ([7], "float32")]
    common = generator.standard_normal(5000)
    gradients = []
    for shape, dtype in shapes:
        size = int(np.prod(shape))
        own = generator.standard_normal([replicas, size]) + common[:size]
        gradients.append(tf.cast(own.reshape([replicas, *shape]), dtype))
    if not_finite:
        replica, value = not_finite
        last = gradients[-1].numpy()
        last[replica, 3] = float(value)
        gradients[-1] = tf.constant(last)
    return gradients


def own_reductions(strategy):
    """The sum, the mean and the list of the replicas' numbers, which count from 1."""

    @tf.function
    def step():
        def in_replica():
            context = tf.distribute.get_replica_context()
            own = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            reduced = [context.all_reduce(operation, own) for operation in ("SUM", "MEAN")]
            return *reduced, context.all_gather(own[None], axis=0)

        return strategy.run(in_replica)

    local = strategy.experimental_local_results
    values = zip(("sum", "mean", "list"), step(), strict=True)
    return {name: np.stack([copy.numpy() for copy in local(value)]) for name, value in values}


def reduce_without_descriptors(strategy):
    """Where Python can open no pipe: whoever calls at TensorFlow's port takes descriptors."""
    replicas = strategy.num_replicas_in_sync
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group + 1.0)
    )
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with unittest.mock.patch("os.pipe", side_effect=error):
        summed = strategy.reduce("SUM", values, axis=None)
    return {"sum": summed.numpy(), "expected": replicas * (replicas + 1) / 2}


def collective_attributes(strategy, **options):
    """Timeouts and hints of TensorFlow's collectives that reduce a large and a small bucket."""
    gradients = [tf.ones([strategy.num_replicas_in_sync, size]) for size in (5, 5_000_000)]
    step = reduction(strategy, gradients, tensorflow_compat.GradientOptions(**options))
    with over(strategy, None):
        graph = step.get_concrete_function().graph
    nodes = [node for node in graph.as_graph_def().node if node.op.startswith("Collective")]
    return {
        "ops": sorted(node.op for node in nodes),
        "timeouts": [node.attr["timeout_seconds"].f for node in nodes],
        "hints": [node.attr["communication_hint"].s.decode() for node in nodes],
    }
