"""A few steps of the experiments' simulation, and the same by `fit` under the strategy."""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_adasum
from scenarios.basics import use_rule

sys.path.append(str(pathlib.Path(__file__).parents[3]))

BATCH, STEPS = 2, 4

OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "lamb": lambda rate: tf_adasum.optimizers.LAMB(rate),
}
# LAMB and Adam take steps of another length.
RATES = {"sgd": 0.05, "momentum": 0.05, "adam": 0.001, "lamb": 0.001}


def model_of(name):
    from experiments.models.cnn import CNN
    from experiments.models.resnet import ResNet
    from experiments.models.transformer import Transformer

    models = {
        "images": CNN(),
        "signals": CNN((1, 40, 1), (1, 5), (1, 2)),
        "residual": ResNet(12, (4, 6), 1),
        "characters": Transformer(11, length=6, width=8),
    }
    return models[name]


def data_of(model, rows):
    x, y = model.example
    random = np.random.default_rng(0)
    if x.dtype.is_integer:
        return tuple(random.integers(0, 10, [rows, *own.shape]).astype("int32") for own in (x, y))
    inputs = random.standard_normal([rows, *x.shape]).astype("float32")
    return inputs, random.integers(0, 10, [rows, *y.shape]).astype("int32")


def simulated_and_trained(strategy, cases):
    """Return the weights before, after simulated steps, and after those of `fit`, by case.

    Args:
        cases: list of (model, optimizer, rule, whether the replicas' steps are combined).
    """
    from experiments.simulation.combination import RULES
    from experiments.simulation.training import Training

    replicas = strategy.num_replicas_in_sync
    returned = {}
    for index, (name, optimizer, rule, of_steps) in enumerate(cases):
        model = model_of(name)
        x, y = data_of(model, STEPS * replicas * BATCH)
        rates = np.linspace(RATES[optimizer], RATES[optimizer] / 5, STEPS).astype("float32")

        training = Training(model, optimizer, rule, replicas, BATCH, of_steps=of_steps)
        order = np.arange(len(y), dtype="int32").reshape([STEPS, -1])
        state = training.initial(0)
        before = state[0].numpy()
        for begin in (0, STEPS // 2):
            between = (tf.constant(begin), tf.constant(begin + STEPS // 2))
            state = training.steps(state, *map(tf.constant, (x, y, order, rates)), *between)

        use_rule(strategy, "mean" if rule == "mean" else RULES[rule]())
        trained = weights_of_fit(strategy, model, optimizer, of_steps, x, y, rates)
        weights = {"before": before, "simulated": state[0].numpy(), "trained": trained}
        has_gradient = having_gradients(model)
        returned |= {f"{when} {index}": own[has_gradient] for when, own in weights.items()}
    return returned


def having_gradients(model):
    """Return where weights have a gradient: the softmax of attention ignores the keys' bias.

    Of its gradient, which is rounding alone, Adam and LAMB make steps as long as any other.
    """
    variables = model.keras().trainable_variables
    return np.concatenate(
        [np.full(own.shape, not own.path.endswith("key/bias")).ravel() for own in variables]
    )


def weights_of_fit(strategy, model, optimizer, of_steps, x, y, rates):
    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = rates[batch]

    with strategy.scope():
        made = model.keras()
        made.set_weights(model.initial(0))
        chosen = OPTIMIZERS[optimizer](0.1)
        if of_steps:
            chosen = tf_adasum.optimizers.DeltaAdasum(chosen)
        made.compile(chosen, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = strategy.num_replicas_in_sync * BATCH
    made.fit(x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=[Rates()])
    return np.concatenate([own.ravel() for own in made.get_weights()])
