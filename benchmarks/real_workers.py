"""Train the experiments' CNN on Fashion-MNIST on four workers, and compare with the simulation.

    python benchmarks/real_workers.py

`fit` on 8, 16 and 32 replicas uses the same initial weights, rows and learning rates as a run of
the experiment `cnn` with the same seed. Writes benchmarks/results/DATE-real_workers.md.
"""

import argparse
import itertools
import time

import numpy as np
import report

WORKERS, DEVICES = 4, (2, 4, 8)
RULE, RATE, SEED = "adasum", 0.04, 0
COMPARED_AFTER = (1, 5, 10, 20, 50)  # steps
ROUNDING = 2.0**-24  # of float32


def prepared(replicas):
    """Return the data, the model, the rows of each step and the learning rates."""
    from experiments import data, schedules
    from experiments.cnn.experiment import EXPERIMENT, FASHION_MNIST
    from experiments.simulation import training_loop

    splits, rows = data.fashion_mnist(), FASHION_MNIST.batch * replicas
    steps = FASHION_MNIST.epochs * (len(splits.train[1]) // rows)
    order = training_loop.orders(len(splits.train[1]), steps, rows, SEED)
    rates = schedules.warmup_and_decay(RATE, steps, FASHION_MNIST.warmup)
    return splits, EXPERIMENT.model_of(FASHION_MNIST.data), order, rates.astype("float32")


def flat(weights):
    return np.concatenate([own.ravel() for own in weights])


def worker(out):
    """Train on this worker and the others; worker 0 saves the results."""
    import keras

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(aggregation=RULE)
    splits, model, order, rates = prepared(strategy.num_replicas_in_sync)
    # Device 0 of each worker gets the first blocks of a global batch, and device 1 the next ones.
    blocks = order.reshape([len(order), WORKERS, strategy.num_replicas_in_sync // WORKERS, -1])
    order = blocks.swapaxes(1, 2).reshape(order.shape)
    with strategy.scope():
        made = model.keras()
        made.set_weights(model.initial(SEED))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])

    def fit(begin, end):
        def set_rate(batch, logs):
            made.optimizer.learning_rate = rates[begin + batch]

        rows = order[begin:end].ravel()
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_begin=set_rate)]
        options = {"batch_size": order.shape[1], "shuffle": False, "verbose": 0}
        made.fit(*(own[rows] for own in splits.train), callbacks=callbacks, **options)

    began = time.perf_counter()
    weights = []
    for begin, end in itertools.pairwise((0, *COMPARED_AFTER)):
        fit(begin, end)
        weights.append(flat(made.get_weights()).tolist())
    fit(end, len(order))
    seconds = time.perf_counter() - began
    _, accuracy = made.evaluate(*splits.test, batch_size=2000, verbose=0)
    measured = {"weights": weights, "accuracy": accuracy, "seconds": seconds}
    report.save(strategy, measured, out)


class Simulation:
    """The same training in one process."""

    def __init__(self, replicas):
        import tensorflow as tf

        from experiments.simulation.training import Training

        self.splits, model, order, rates = prepared(replicas)
        self.steps = len(order)
        self.training = Training(model, "momentum", RULE, replicas, order.shape[1] // replicas)
        self.inputs = [*map(tf.constant, (*self.splits.train, order, rates))]

    def weights(self, stops, error=0.0):
        """Return the weights after some numbers of steps.

        Args:
            stops: the numbers of steps.
            error: the standard deviation of relative errors that are added to the initial weights.
        """
        import tensorflow as tf

        (initial, *rest), found = self.training.initial(SEED), []
        errors = np.random.default_rng(0).normal(0, error, initial.shape)
        state = (initial * (1 + errors).astype("float32"), *rest)
        for begin, end in itertools.pairwise((0, *stops)):
            state = self.training.steps(state, *self.inputs, *map(tf.constant, (begin, end)))
            found.append(state[0].numpy())
        return found

    def accuracy(self, weights):
        """Return the accuracy of some weights on the test split."""
        import tensorflow as tf

        measured = self.training.measure(
            [tf.constant(weights)], *map(tf.constant, self.splits.test)
        )
        return float(measured["accuracy"])


def differences(first, second):
    """Return the largest difference of a weight after each number of steps, as text."""
    pairs = zip(first[: len(COMPARED_AFTER)], second, strict=True)
    return [f"{np.abs(own - other).max():.0e}" for own, other in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="this is a worker")
    arguments = parser.parse_args()
    if arguments.out:
        worker(arguments.out)
        return
    rows = []
    for devices in DEVICES:
        real = report.on_workers(WORKERS, __file__, devices=devices, seconds=1200)
        simulation = Simulation(WORKERS * devices)
        weights = simulation.weights((*COMPARED_AFTER, simulation.steps))
        changed = simulation.weights(COMPARED_AFTER, error=ROUNDING)
        begin = [WORKERS * devices, simulation.steps]
        ended = f"{real['accuracy']:.4f}", f"{real['seconds']:.0f}"
        own = f"{simulation.accuracy(weights[-1]):.4f}"
        rows += [
            [*begin, "simulation", *[""] * len(COMPARED_AFTER), own, ""],
            [*begin, "simulation, changed", *differences(weights, changed), "", ""],
            [*begin, f"{WORKERS} x {devices}", *differences(weights, real["weights"]), *ended],
        ]
        print(*rows[-2:], sep="\n", flush=True)
    header = ["replicas", "steps", "training", *(f"after {count}" for count in COMPARED_AFTER)]
    report.write(
        "real_workers",
        "A whole training on real workers and in the simulation",
        f"The CNN of the experiment `cnn` on Fashion-MNIST, 2 epochs, rule {RULE}, Momentum 0.9, "
        f"learning rate {RATE}, one seed; accuracy on the test split. The workers are processes "
        "with several logical CPU devices (*4 x 2*: 4 workers with 2 each). *After …*: the largest "
        "difference of a weight from the simulation after so many steps. *Changed*: the simulation "
        f"with relative errors of {ROUNDING:.0e} in the initial weights, which shows how rounding "
        "errors grow.\n\n" + report.table([*header, "accuracy", "seconds of `fit`"], rows),
    )


if __name__ == "__main__":
    main()
