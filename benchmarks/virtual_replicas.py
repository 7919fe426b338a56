"""Time and memory of an update with k virtual replicas, beside gradient_accumulation_steps=k.

Each measurement is a process of its own: a network of 1.6 million parameters in `fit`, with four
samples in each micro-batch, on one CPU device. The two kinds take turns; the table has the median
and the range of all turns.

    .venv/bin/python benchmarks/virtual_replicas.py            # a few minutes
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

WIDTH, ROWS, COUNTS = 720, 4, (2, 8, 32)


def measure(kind, k, updates):
    import keras
    import numpy as np

    import tf_adasum

    is_virtual = kind == "virtual"
    strategy = tf_adasum.AdasumMirroredStrategy(
        ["CPU:0"], virtual_replicas=k if is_virtual else None
    )
    batches = updates if is_virtual else updates * k
    x = np.random.RandomState(0).normal(size=[ROWS * k * updates, WIDTH]).astype("float32")
    y = x[:, :1]
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(3)]
        model = keras.Sequential([keras.Input([WIDTH]), *layers, keras.layers.Dense(1)])
        steps = None if is_virtual or kind == "none" else k
        sgd = keras.optimizers.SGD(0.001, gradient_accumulation_steps=steps)
        model.compile(sgd, "mse", jit_compile=False)
    options = {"batch_size": ROWS * (k if is_virtual else 1), "verbose": 0, "shuffle": False}
    used = len(x) // batches * 2 * (1 if is_virtual else k)
    model.fit(x[:used], y[:used], **options)
    began = time.perf_counter()
    model.fit(x, y, **options)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parameters = model.count_params()
    return {"ms": seconds / updates * 1000, "MiB": peak, "gradients": parameters * 4 / 2**20}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", nargs=3, help="kind, k and updates of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        kind, k, updates = options.one
        print(json.dumps(measure(kind, int(k), int(updates))))
        return
    print(
        "| k | virtual: ms | accumulation: ms | time | more memory: MiB | "
        "(log2 k + 2) gradients: MiB |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for k in COUNTS:
        found = {"virtual": [], "accumulation": []}
        for _ in range(options.repeats):
            for kind, own in found.items():
                command = [sys.executable, __file__, "--one", kind, str(k), str(max(10, 160 // k))]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                own.append(json.loads(done.stdout.splitlines()[-1]))
        virtual, accumulation = found.values()
        pairs = list(zip(virtual, accumulation, strict=True))
        more = [one["MiB"] - other["MiB"] for one, other in pairs]
        times = [one["ms"] / other["ms"] for one, other in pairs]
        copies = (k.bit_length() - 1 + 2) * found["virtual"][0]["gradients"]
        print(
            f"| {k} | {median(each['ms'] for each in virtual):.1f} | "
            f"{median(each['ms'] for each in accumulation):.1f} | "
            f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | "
            f"{median(more):.0f} ({min(more):.0f} to {max(more):.0f}) | {copies:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
