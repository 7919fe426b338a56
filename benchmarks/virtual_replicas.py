"""Time and memory of an update with k virtual replicas, beside gradient_accumulation_steps=k.

Each measurement is a process of its own: a network of 1.6 million parameters in `fit`, with four
samples in each micro-batch, on one CPU device. The two kinds take turns. Writes
benchmarks/results/DATE-virtual_replicas.md.

    python benchmarks/virtual_replicas.py            # a few minutes
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

import numpy as np
import report

from experiments.comparison import with_range

WIDTH, ROWS, COUNTS = 720, 4, (2, 8, 32)


def measure(kind, k, updates):
    import keras

    import tf_adasum

    is_virtual = kind == "virtual"
    replicas = k if is_virtual else None
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"], virtual_replicas=replicas)
    batches = updates if is_virtual else updates * k
    x = np.random.RandomState(0).normal(size=[ROWS * k * updates, WIDTH]).astype("float32")
    y = x[:, :1]
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input([WIDTH]), *layers, keras.layers.Dense(1)])
        sgd = keras.optimizers.SGD(0.001, gradient_accumulation_steps=None if is_virtual else k)
        model.compile(sgd, "mse", jit_compile=False)
    options = {"batch_size": ROWS * (k if is_virtual else 1), "verbose": 0, "shuffle": False}
    used = len(x) // batches * 2 * (1 if is_virtual else k)
    model.fit(x[:used], y[:used], **options)
    began = time.perf_counter()
    model.fit(x, y, **options)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    gradients = model.count_params() * 4 / 2**20
    return {"ms": seconds / updates * 1000, "MiB": peak, "gradients": gradients}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=3, help="kind, k and updates of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], *map(int, options.one[1:]))))
        return
    rows = []
    for k in COUNTS:
        found = {"virtual": [], "accumulation": []}
        for _ in range(options.repeats):
            for kind, own in found.items():
                command = [sys.executable, __file__, "--one", kind, str(k), str(max(10, 160 // k))]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                own.append(json.loads(done.stdout.splitlines()[-1]))
        virtual, accumulation = found.values()
        pairs = list(zip(virtual, accumulation, strict=True))
        ratios = [one["ms"] / other["ms"] for one, other in pairs]
        more = [one["MiB"] - other["MiB"] for one, other in pairs]
        copies = (k.bit_length() - 1 + 2) * virtual[0]["gradients"]
        rows.append([k, *(f"{median(one['ms'] for one in own):.1f}" for own in found.values())])
        rows[-1] += [with_range(ratios, 2), with_range(more, 0), f"{copies:.0f}"]
    header = ["k", "virtual: ms", "accumulation: ms", "time", "more memory: MiB"]
    report.write(
        "virtual_replicas",
        "Virtual replicas beside gradient accumulation",
        f"Milliseconds of an update, the ratio of both kinds in a turn, and how much more memory "
        f"the process of virtual replicas has at its peak: medians (ranges) of {options.repeats} "
        f"turns. Four samples in a micro-batch, 1.6 million parameters, one CPU device.\n\n"
        + report.table([*header, "(log2 k + 2) gradients: MiB"], rows),
    )


if __name__ == "__main__":
    main()
