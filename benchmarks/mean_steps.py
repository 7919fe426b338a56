"""Time steps of the rule mean before and after a commit, in turn, and count their collectives.

    python benchmarks/mean_steps.py FORMER [--models cnn dense sparse] [--turns 15]

Trains each model on two workers over UCX, with the package of the commit FORMER and with this one.
Both trainings run at the same time, and take turns: while one runs an epoch, the other one waits.
The transport counts the collectives that each step has run. Writes
benchmarks/results/DATE-mean_steps.md.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import report

MODELS = {"cnn": "small CNN", "dense": "25 M parameters", "sparse": "sparse embeddings"}
STEPS = {"cnn": 80, "dense": 15, "sparse": 80}  # of an epoch
SKIPPED = 3  # steps at the beginning of an epoch that are not timed
SECONDS = 460


def build(kind):
    """Return a model, its rows, and the rows of a global batch."""
    import keras

    layers, random, steps = keras.layers, np.random.default_rng(0), STEPS[kind]
    if kind == "cnn":
        inputs, rows = random.random([64 * steps, 28, 28, 1], "float32"), 64
        hidden = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()]
        hidden += [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()]
        hidden += [layers.Flatten(), layers.Dense(64, activation="relu")]
    elif kind == "dense":
        inputs, rows = random.random([16 * steps, 1000], "float32"), 16
        hidden = [layers.Dense(width, activation="relu") for width in (3500, 3500, 2600)]
    else:
        inputs, rows = random.integers(0, 50000, [128 * steps, 20]).astype("int32"), 128
        hidden = [layers.Embedding(50000, 64), layers.GlobalAveragePooling1D()]
    start = keras.Input(inputs.shape[1:], dtype=inputs.dtype)
    return keras.Sequential([start, *hidden, layers.Dense(10)]), inputs, rows


def train(kind, side, turns, out):
    """Run epochs in turn with the other side; the file `turns` counts the epochs of both sides."""
    import keras

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(aggregation="mean", transport="ucx")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, x, rows = build(kind)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss)
    y = np.random.default_rng(1).integers(0, 10, len(x))
    times, file, begun, counts = [], pathlib.Path(turns), [], []
    transport = strategy.extended._cross_device_ops.transport

    # Former commits have no underscore.
    workers = getattr(strategy, "_workers", None) or strategy.workers

    def note_step(batch, logs):
        begun.append(time.perf_counter())
        if batch > SKIPPED:  # the key of the last step's last collective counts its collectives
            counts.append(int(transport._keys[0]._last_key) % 2**24 + 1)

    note = keras.callbacks.LambdaCallback(on_train_batch_begin=note_step)

    def epoch():
        workers.gather(np.array([1]))  # worker 1 waits for worker 0
        begun.clear()
        model.fit(x, y, batch_size=rows, verbose=0, shuffle=False, callbacks=[note])
        return (begun[-1] - begun[SKIPPED]) / (len(begun) - 1 - SKIPPED)

    epoch()
    for number in range(count_of(file)):
        if strategy.is_first_worker:
            while passed(file) != 2 * number + side:
                time.sleep(0.005)
        times.append(epoch())
        if strategy.is_first_worker:
            with file.open("a") as stream:
                stream.write(".")
    if strategy.is_first_worker:
        measured = {
            "times": times,
            "counts": sorted(set(counts)),
            "parameters": model.count_params(),
        }
        pathlib.Path(out).write_text(json.dumps(measured))
    workers.gather(np.array([1]))


def count_of(file):
    return int(file.read_text().partition("\n")[0])


def passed(file):
    return len(file.read_text().partition("\n")[2])


def measured(kind, former, turns):
    """Return what both sides have measured: of the former commit, and of this one."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "turns")
        file.write_text(f"{turns}\n")
        jobs, outs = [], [f"{folder}/0.json", f"{folder}/1.json"]
        for side, tree in enumerate((former, report.ROOT)):
            command = [sys.executable, "-m", "tf_adasum.launch", "-n", "2", "--timeout", SECONDS]
            own = [__file__, "--train", kind, side, file, outs[side]]
            environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
            jobs.append(subprocess.Popen(list(map(str, command + own)), env=environment))
        if any(job.wait() for job in jobs):
            raise SystemExit(f"{kind}: a training failed")
        return [json.loads(pathlib.Path(out).read_text()) for out in outs]


def row(kind, before, after):
    ratios = np.divide(after["times"], before["times"])
    cells = [report.quartiles(each["times"], 1000, 1) for each in (before, after)]
    cells.append(report.quartiles(ratios, 1, 3))
    cells += [", ".join(map(str, each["counts"])) for each in (before, after)]
    return [f"{MODELS[kind]}, {before['parameters']:,} parameters", *cells]


def main():
    if sys.argv[1] == "--train":
        kind, side, turns, out = sys.argv[2:]
        return train(kind, int(side), turns, out)

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("former")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    with report.checkout_of(arguments.former) as former:
        rows = [row(kind, *measured(kind, former, arguments.turns)) for kind in arguments.models]
    report.write(
        "mean_steps",
        "Steps of the rule mean, before and after",
        f"Milliseconds of a step of `fit` on two workers over UCX, with commit {arguments.former} "
        f"and with this one: means of an epoch's steps in {arguments.turns} turns, median "
        "(quartiles). The ratio is that of a turn. Collectives: how many ran over UCX in a "
        "step.\n\n"
        + report.table(
            ["model", "before, ms", "after, ms", "after / before", "collectives before", "after"],
            rows,
        ),
    )


if __name__ == "__main__":
    main()
