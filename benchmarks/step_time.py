"""Time the steps of `fit`: AdasumMirroredStrategy against TensorFlow's own strategy.

    python benchmarks/step_time.py
    python benchmarks/step_time.py --transport
    python benchmarks/step_time.py --jit

A model of 25 million parameters is trained on 2 workers under both strategies in turn, in one
process. Keras 3's `fit` does not run under the stock `MultiWorkerMirroredStrategy` on several
workers, so the baseline is this strategy with a fixed `reduce`. Writes
benchmarks/results/DATE-step_time.md.

With `--transport` the mean and Adasum over UCX also take turns, and Horovod if it is installed
(horovod_worker.py). Writes benchmarks/results/DATE-step_time_transport.md.

With `--jit` a CNN and a Transformer are trained under AdasumMirroredStrategy, with
`compile(jit_compile=True)` and without it in turn. Writes benchmarks/results/DATE-jit_time.md.
"""

import argparse
import collections

import horovod_worker
import numpy as np
import report
from fit_steps import WARM_UP, time_in_turn

ROWS = 64  # of a global batch
TURNS = 3  # with `--transport`, the processes of each package run this number of times
FEATURES, WIDTH, CLASSES = 1024, 4096, 1000  # 25.1 million parameters

# For `--jit`: images of 32 x 32 pixels, and sequences of 64 words out of 1,000.
PIXELS, WORDS, LENGTH = 32, 1000, 64
JIT_ROWS = {"CNN": 64, "Transformer": 16}  # of a global batch


def stock_strategy():
    """`MultiWorkerMirroredStrategy` with a `reduce` that Keras's `fit` can call."""
    import tensorflow as tf

    class StockStrategy(tf.distribute.MultiWorkerMirroredStrategy):
        def reduce(self, reduce_op, value, axis):
            if tf.nest.is_nested(value):  # the first batch; only its shapes are used
                local = self.experimental_local_results
                return tf.nest.map_structure(lambda each: local(each)[0], value)
            return super().reduce(reduce_op, value, None)

    return StockStrategy()


def model_of_25_million(optimizer):
    """Return the compiled model."""
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input([FEATURES]), keras.layers.Dense(WIDTH, "relu")]
    layers += [keras.layers.Dense(WIDTH, "relu"), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    return model


def random_rows(count):
    """Return features and classes for the model."""
    random = np.random.default_rng(0)
    x = random.standard_normal([count, FEATURES], dtype=np.float32)
    return x, random.integers(0, CLASSES, count)


def measure(rounds, steps, out, transports):
    """Return the seconds of each step under each strategy, on every worker."""
    import keras

    import tf_adasum

    adasum = tf_adasum.AdasumMirroredStrategy(transport="tensorflow")
    strategies = {"adasum": adasum, "stock": stock_strategy()}
    if transports:
        strategies |= {
            f"{rule} over UCX": tf_adasum.AdasumMirroredStrategy(aggregation=rule, transport="ucx")
            for rule in ("mean", "adasum")
        }
    models = {}
    for kind, strategy in strategies.items():
        with strategy.scope():
            models[kind] = model_of_25_million(keras.optimizers.SGD(0.001))
    x, y = random_rows(ROWS * (WARM_UP + steps))
    measured = time_in_turn(models, x, y, batch_size=ROWS, rounds=rounds)
    report.save(strategies["adasum"], measured, out)


def compare_transports(arguments, options):
    """Write the report of `--transport`."""
    per_round = collections.defaultdict(list)
    for _ in range(TURNS):
        seconds = report.on_workers(arguments.workers, __file__, *options, "--transport")
        if horovod_worker.is_available():
            own = {"rounds": arguments.rounds, "steps": arguments.steps, "rows": ROWS}
            theirs = horovod_worker.on_workers(arguments.workers, "shared memory", "fit", **own)
            seconds |= {f"Horovod, {kind}": own for kind, own in theirs.items()}
        for kind, own in seconds.items():
            per_round[kind] += np.median(own, axis=1).tolist()
    rows = [
        [kind, report.quartiles(own, 1000, 0), report.quartiles(np.divide(own, per_round["stock"]))]
        for kind, own in per_round.items()
    ]
    report.write(
        "step_time_transport",
        "Steps of `fit` over UCX, against the stock strategy and Horovod",
        f"{arguments.workers} workers, 25.1 million parameters, SGD, {ROWS} rows in a global "
        f"batch. Milliseconds of a step on worker 0: medians of {arguments.steps} steps in each of "
        f"{arguments.rounds} rounds in which the strategies take turns, here their median "
        "(quartiles). *Stock* is `MultiWorkerMirroredStrategy`, with the fix of `reduce`. UCX and "
        "Open MPI use shared memory. Horovod 0.28.1, with TensorFlow 2.15 and Keras 2.15, has "
        f"processes of its own, which take turns with those of the others {TURNS} times.\n\n"
        + report.table(["strategy", "milliseconds", "/ stock"], rows),
    )


def cnn():
    """Return a model of 0.3 million parameters with three convolutions."""
    import keras

    layers = [keras.layers.Input([PIXELS, PIXELS, 3])]
    for channels in (32, 64, 128):
        layers += [
            keras.layers.Conv2D(channels, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(100), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def transformer(width=128, blocks=2):
    """Return an encoder of 0.7 million parameters that predicts a word for each input word."""
    import keras

    words = keras.Input([LENGTH], dtype="int32")
    x = keras.layers.Embedding(WORDS, width)(words)
    for _ in range(blocks):
        own = keras.layers.LayerNormalization()(x)
        own = keras.layers.MultiHeadAttention(4, width // 4, dropout=0.1)(own, own)
        x = keras.layers.Add()([x, own])
        own = keras.layers.LayerNormalization()(x)
        own = keras.layers.Dense(4 * width, "gelu")(own)
        own = keras.layers.Dropout(0.1)(keras.layers.Dense(width)(own))
        x = keras.layers.Add()([x, own])
    return keras.Model(words, keras.layers.Dense(WORDS)(keras.layers.LayerNormalization()(x)))


def measure_jit(rounds, steps, out):
    """Return the seconds of each step of each model, with XLA and without."""
    import keras

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    random = np.random.default_rng(0)
    seconds = {}
    for name, make in (("CNN", cnn), ("Transformer", transformer)):
        count = JIT_ROWS[name] * (WARM_UP + steps)
        if name == "CNN":
            x = random.standard_normal([count, PIXELS, PIXELS, 3], dtype=np.float32)
            y = random.integers(0, 10, count)
        else:
            x = y = random.integers(0, WORDS, [count, LENGTH])
        models = {}
        for kind in ("off", "on"):
            keras.utils.set_random_seed(0)
            with strategy.scope():
                models[kind] = make()
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
                models[kind].compile(optimizer, loss, jit_compile=kind == "on")
        seconds[name] = time_in_turn(models, x, y, batch_size=JIT_ROWS[name], rounds=rounds)
    report.save(strategy, seconds, out)


def report_jit(arguments, seconds):
    """Write the report of `--jit`."""
    rows = []
    for name, by_kind in seconds.items():
        off, on = (np.median(by_kind[kind], axis=1) for kind in ("off", "on"))
        times = [report.quartiles(own, 1000, 0) for own in (off, on)]
        rows.append([name, *times, report.quartiles(on / off)])
    report.write(
        "jit_time",
        "Steps of `fit` with `compile(jit_compile=True)`",
        f"{arguments.workers} workers, AdasumMirroredStrategy, momentum SGD. A CNN on "
        f"{JIT_ROWS['CNN']} images of {PIXELS} x {PIXELS} in a global batch, a Transformer encoder "
        f"on {JIT_ROWS['Transformer']} sequences of {LENGTH} words. Milliseconds of a step on "
        f"worker 0: medians of {arguments.steps} steps in each of {arguments.rounds} rounds that "
        "take turns, here their median (quartiles). Compiling is not part of it.\n\n"
        + report.table(["model", "without XLA", "with XLA", "with / without"], rows),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--jit", action="store_true", help="compare jit_compile on and off")
    parser.add_argument("--transport", action="store_true", help="UCX, and Horovod")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        own = arguments.rounds, arguments.steps, arguments.out
        if arguments.jit:
            measure_jit(*own)
        else:
            measure(*own, transports=arguments.transport)
        return
    options = ["--rounds", str(arguments.rounds), "--steps", str(arguments.steps)]
    if arguments.transport:
        compare_transports(arguments, options)
        return
    options += ["--jit"] if arguments.jit else []
    seconds = report.on_workers(arguments.workers, __file__, *options)
    if arguments.jit:
        report_jit(arguments, seconds)
        return
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
