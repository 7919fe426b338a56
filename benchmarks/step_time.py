"""Time the steps of `fit`: AdasumMirroredStrategy against TensorFlow's own strategy.

    python benchmarks/step_time.py

A model of 25 million parameters is trained on 2 workers under both strategies in turn, in one
process. Keras 3's `fit` does not run under the stock `MultiWorkerMirroredStrategy` on several
workers, so the baseline is that strategy with a `reduce` that is mended here. Writes
benchmarks/results/DATE-step_time.md.
"""

import argparse

import numpy as np
import report
from fit_steps import WARM_UP, time_in_turn

ROWS = 64  # of a global batch
FEATURES, WIDTH, CLASSES = 1024, 4096, 1000  # 25.1 million parameters


def stock_strategy():
    """`MultiWorkerMirroredStrategy` with a `reduce` that Keras's `fit` can call."""
    import tensorflow as tf

    class StockStrategy(tf.distribute.MultiWorkerMirroredStrategy):
        def reduce(self, reduce_op, value, axis):
            if tf.nest.is_nested(value):  # the first batch, of which only the shapes are used
                local = self.experimental_local_results
                return tf.nest.map_structure(lambda each: local(each)[0], value)
            return super().reduce(reduce_op, value, None)

    return StockStrategy()


def build(strategy, optimizer):
    """Return the compiled model."""
    import keras

    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Input([FEATURES]), keras.layers.Dense(WIDTH, "relu")]
        layers += [keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(CLASSES)]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=optimizer(), loss=loss)
    return model


def random_rows(count):
    """Return features and classes for the model."""
    random = np.random.default_rng(0)
    x = random.standard_normal([count, FEATURES], dtype=np.float32)
    return x, random.integers(0, CLASSES, count)


def measure(rounds, steps, out):
    """Return the seconds of each step under each strategy, on every worker."""
    import keras

    import tf_adasum

    ours = tf_adasum.AdasumMirroredStrategy()
    models = {
        kind: build(strategy, lambda: keras.optimizers.SGD(0.001))
        for kind, strategy in (("stock", stock_strategy()), ("adasum", ours))
    }
    x, y = random_rows(ROWS * (WARM_UP + steps))
    report.save(ours, time_in_turn(models, x, y, batch_size=ROWS, rounds=rounds), out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        measure(arguments.rounds, arguments.steps, arguments.out)
        return
    options = ["--rounds", str(arguments.rounds), "--steps", str(arguments.steps)]
    seconds = report.on_workers(arguments.workers, __file__, *options)
    per_round = {kind: np.median(own, axis=1) for kind, own in seconds.items()}
    milliseconds = [report.quartiles(per_round[kind], 1000, 0) for kind in ("stock", "adasum")]
    ratios = per_round["adasum"] / per_round["stock"]
    report.write(
        "step_time",
        "Steps of `fit`: AdasumMirroredStrategy against the stock strategy",
        f"{arguments.workers} workers, 25.1 million parameters, SGD, {ROWS} rows in a global "
        f"batch. Milliseconds of a step on worker 0: medians of {arguments.steps} steps in each of "
        f"{arguments.rounds} rounds that take turns, here their median (quartiles).\n\n"
        + report.table(
            ["stock, with the fix of `reduce`", "adasum", "adasum / stock"],
            [[*milliseconds, report.quartiles(ratios)]],
        ),
    )


if __name__ == "__main__":
    main()
