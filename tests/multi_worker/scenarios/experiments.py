"""A few steps of the experiments' simulation, and the same by `fit` under the strategy."""

import functools
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_adasum
from scenarios import basics
from scenarios.basics import use_rule

sys.path.append(str(pathlib.Path(__file__).parents[3]))

BATCH, STEPS = 2, 4

# Of a model, an optimizer, a rule, and whether the replicas' steps are combined: every one of them.
CASES = [
    ("images", "momentum", "adasum", False),
    ("images", "adam", "adasum", True),
    ("images", "adam", "mean", False),
    ("images", "lamb", "adasum", True),
    ("signals", "momentum", "adasum", False),
    ("residual", "momentum", "adasum", False),
    ("characters", "lamb", "mean", False),
    ("characters", "lamb", "adasum", True),
    ("clicks", "sgd", "adasum", False),
    ("clicks", "sgd", "adacons", False),
]
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "lamb": lambda rate: tf_adasum.optimizers.LAMB(rate),
}
# LAMB and Adam take steps of another length.
RATES = {"sgd": 0.05, "momentum": 0.05, "adam": 0.001, "lamb": 0.001}


def model_of(name):
    from experiments.models.clicks import Clicks
    from experiments.models.cnn import CNN
    from experiments.models.resnet import ResNet
    from experiments.models.transformer import Transformer

    return {
        "images": CNN,
        "signals": lambda: CNN((1, 40, 1), (1, 5), (1, 2)),
        "residual": lambda: ResNet((1, 12, 1), (1, 5), (4, 6), 1),
        "characters": lambda: Transformer(11, length=6, width=8),
        "clicks": lambda: Clicks(2, (10, 12), width=4, hidden=(5, 6)),
    }[name]()


def data_of(model, rows):
    x, y = model.example
    random = np.random.default_rng(0)
    if x.dtype.is_integer:
        inputs = random.integers(0, 10, [rows, *x.shape]).astype("int32")
    else:
        inputs = random.standard_normal([rows, *x.shape]).astype("float32")
    return inputs, random.integers(0, model.classes, [rows, *y.shape]).astype("int32")


def in_two_parts(training, state, *arguments):
    """Take all steps of a simulation."""
    for begin in (0, STEPS // 2):
        between = (begin, begin + STEPS // 2)
        state = training.steps(state, *map(tf.constant, (*arguments, *between)))
    return state


def simulated_and_trained(strategy):
    """Return the weights before, after simulated steps, and after those of `fit`, by case."""
    from experiments.simulation.combination import RULES
    from experiments.simulation.training import Training

    replicas = strategy.num_replicas_in_sync
    returned = {}
    for index, (name, optimizer, rule, of_steps) in enumerate(CASES):
        model = model_of(name)
        x, y = data_of(model, STEPS * replicas * BATCH)
        rates = np.linspace(RATES[optimizer], RATES[optimizer] / 5, STEPS).astype("float32")

        training = Training(model, optimizer, rule, replicas, BATCH, of_steps=of_steps)
        order = np.arange(len(y), dtype="int32").reshape([STEPS, -1])
        state = training.initial(0)
        before = state[0].numpy()
        state = in_two_parts(training, state, x, y, order, rates)

        use_rule(strategy, RULES[rule]())
        made = compiled(strategy, model, functools.partial(optimizer_of, optimizer, of_steps))
        fit(made, x, y, replicas * BATCH, [Rates(rates)])
        weights = {"before": before, "simulated": state[0].numpy(), "trained": flat(made)}
        has_gradient = having_gradients(model)
        returned |= {f"{when} {index}": own[has_gradient] for when, own in weights.items()}
    return returned


def pairs_simulated_and_trained(strategy):
    """Return word2vec's tables before, after simulated steps and after those of `fit`, by rule."""
    from experiments.models.skipgram import SkipGram, loss_of_pairs
    from experiments.simulation.combination import RULES
    from experiments.simulation.tables import SparseTraining

    replicas = strategy.num_replicas_in_sync
    model = SkipGram(20, width=3, negatives=2)
    random = np.random.default_rng(0)
    # Few words: they repeat within a replica's rows, and on several replicas.
    x = random.integers(0, 20, [STEPS * replicas * 5, 4]).astype("int32")
    y = np.tile(np.array([1, 0, 0], "float32"), [len(x), 1])
    rates = np.linspace(2.0, 0.5, STEPS).astype("float32")
    initial = [random.standard_normal(shape).astype("float32") for shape in model.shapes]
    returned = {}
    for rule in ("mean", "adasum"):
        training = SparseTraining(model, rule, replicas, 5)
        order = np.arange(len(x), dtype="int32").reshape([STEPS, -1])
        tables = list(map(tf.constant, initial))
        returned[f"before {rule}"] = initial
        tables = in_two_parts(training, tables, x, y, order, rates)
        returned[f"simulated {rule}"] = [own.numpy() for own in tables]

        use_rule(strategy, RULES[rule]())
        made = basics.compiled(strategy, model.keras, loss=loss_of_pairs)
        made.set_weights(initial)
        fit(made, x, y, replicas * 5, [Rates(rates)])
        returned[f"trained {rule}"] = made.get_weights()
    return returned


def gains_simulated_and_trained(strategy):
    """Return weights, τ and r of AdaScale in the simulation and of `fit`; S is set anew halfway."""
    from experiments.adascale import experiment
    from experiments.simulation import gains

    replicas, total = strategy.num_replicas_in_sync, 40
    model = model_of("images")
    use_rule(strategy, "mean")
    first, second = 4 * replicas * BATCH, 4 * replicas * 2 * BATCH
    x, y = data_of(model, first + second)
    rates = experiment.falling(0.1, total)
    base = experiment.schedule(0.1, total)

    state = gains.GainTraining(model, replicas, BATCH).initial(0)
    returned = {"before": state.weights.numpy()}
    order = np.arange(len(y), dtype="int32")
    parts = ((order[:first], BATCH, replicas), (order[first:], 2 * BATCH, 2 * replicas))
    for rows, batch, scale in parts:
        own = gains.GainTraining(model, replicas, batch, scale)
        rows = tf.reshape(tf.constant(rows), [-1, replicas * batch])
        for _ in range(4):  # τ just above what it is: one step
            until = state.scale_invariant_steps + 1e-6
            # The step's own rows: a training begins its order anew at the end.
            state = state._replace(iterations=state.iterations % 4)
            state = own.steps(state, tf.constant(x), tf.constant(y), rows, rates, until)
    returned["simulated"] = state.weights.numpy()
    returned["gain"] = float(state.gain), float(state.scale_invariant_steps)

    def make():
        return tf_adasum.optimizers.AdaScale(keras.optimizers.SGD(base, momentum=0.9))

    made = compiled(strategy, model, make)
    fit(made, x[:first], y[:first], replicas * BATCH)
    adascale = made.optimizer
    adascale.set_scale(2 * replicas)
    fit(made, x[first:], y[first:], 2 * replicas * BATCH)
    returned["trained"] = flat(made)
    returned["gain of fit"] = float(adascale.gain), float(adascale.scale_invariant_steps)
    return returned


class Rates(keras.callbacks.Callback):
    """Sets the learning rate of each step."""

    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = self.rates[batch]


def having_gradients(model):
    """Return where weights have a gradient: the softmax of attention ignores the keys' bias.

    Of its gradient, which is rounding alone, Adam and LAMB make steps as long as any other.
    """
    variables = model.keras().trainable_variables
    return np.concatenate(
        [np.full(own.shape, not own.path.endswith("key/bias")).ravel() for own in variables]
    )


def optimizer_of(name, of_steps):
    optimizer = OPTIMIZERS[name](0.1)
    return tf_adasum.optimizers.DeltaAdasum(optimizer) if of_steps else optimizer


def compiled(strategy, model, make):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made = basics.compiled(strategy, model.keras, make, loss)
    made.set_weights(model.initial(0))
    return made


def fit(made, x, y, rows, callbacks=()):
    made.fit(x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=[*callbacks])


def flat(made):
    return np.concatenate([own.ravel() for own in made.get_weights()])
