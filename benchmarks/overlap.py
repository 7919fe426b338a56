"""Measure how much of the exchange of gradients is hidden behind backpropagation.

    python benchmarks/overlap.py [--mbit 1000 10000]

Runs two hosts with one worker each, as slow_links.py does. Needs root. Each worker is bound to one
core, where TensorFlow's default is one thread for operations (inter-op).

- compute: a step of `fit` that exchanges nothing, a local step of `DeltaAdasum`;
- exchange: the same gradients in a loop in one graph, without backpropagation;
- hidden: (compute + exchange - step) / exchange.

Writes benchmarks/results/DATE-overlap.md.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import time

import numpy as np
import report
import slow_links

HOSTS, EPOCHS, EXCHANGES = 2, 4, 2
# For each number of inter-op threads: whether buckets are as between hosts (`aggregation.buckets`).
BUCKETS = {1: {"as on one host": False, "default": True}, 2: {"default": True}}
THREADS = "TF_NUM_INTEROP_THREADS"  # TensorFlow reads this variable
STEPS = {"dense, 16 MB": 12, "dense, 100 MB": 4, "convolutions, 19 MB": 8}
ROWS = {"dense, 16 MB": 64, "dense, 100 MB": 64, "convolutions, 19 MB": 8}
SHAPES = {"convolutions, 19 MB": (32, 32, 3)}
WIDTHS = {"dense, 16 MB": [1024] * 4, "dense, 100 MB": [2560] * 4}
FILTERS = (64, 64, 128, 128, 256, 256, 512, 512)


def compiled(name, strategy, wrapper):
    """Return a compiled model."""
    import keras
    from keras.layers import Conv2D, Dense, GlobalAveragePooling2D, Input

    with strategy.scope():
        if name in WIDTHS:
            layers = [Input([WIDTHS[name][0]]), *(Dense(n, "relu") for n in WIDTHS[name])]
        else:
            layers = [Input(SHAPES[name])]
            for i, filters in enumerate(FILTERS):
                stride = 2 if i % 2 else 1
                options = {"strides": stride, "padding": "same", "activation": "relu"}
                layers.append(Conv2D(filters, 3, **options))
            layers.append(GlobalAveragePooling2D())
        model = keras.Sequential([*layers, Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(wrapper(keras.optimizers.SGD(1e-4)), loss)
    return model


def steps(name, model):
    """Return the seconds of a step of `fit` in each epoch but the first."""
    import keras

    times = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: times.append(time.perf_counter())
    )
    random = np.random.default_rng(0)
    rows = HOSTS * ROWS[name]
    x = random.standard_normal([rows * STEPS[name], *model.input_shape[1:]], dtype=np.float32)
    y = random.integers(0, 10, len(x))
    options = {"batch_size": rows, "shuffle": False, "verbose": 0, "epochs": 1 + EPOCHS}
    model.fit(x, y, callbacks=[clock], **options)
    ends = np.reshape(times, [-1, STEPS[name]])[1:]
    return ((ends[:, -1] - ends[:, 0]) / (STEPS[name] - 1)).tolist()


def exchanges(strategy, model, count, loops):
    """Return the seconds of one exchange of the model's gradients in each of several loops."""
    import tensorflow as tf

    gradients = [tf.random.normal(v.shape) for v in model.trainable_variables]
    options = strategy.gradient_reduction

    def combine(*own):
        return tf.distribute.get_replica_context().all_reduce("SUM", own, options=options)

    @tf.function
    def loop():
        own = gradients
        for _ in tf.range(count):
            own = list(strategy.run(combine, args=tuple(own)))
        return own[0]

    loop().numpy()
    seconds = []
    for _ in range(loops):
        start = time.perf_counter()
        loop().numpy()
        seconds.append((time.perf_counter() - start) / count)
    return seconds


def work():
    """Return the seconds of each part of a step, for each model and each kind of buckets."""
    import tf_adasum
    from tf_adasum.compat import tensorflow as tensorflow_compat
    from tf_adasum.optimizers import DeltaAdasum

    found = {name: {} for name in STEPS}
    for kind, spans_hosts in BUCKETS[int(os.environ[THREADS])].items():
        strategy = tf_adasum.AdasumMirroredStrategy(transport="ucx")
        collectives = tensorflow_compat.cross_device_ops(strategy.extended)
        assert collectives.scheme.spans_hosts
        collectives.scheme = dataclasses.replace(collectives.scheme, spans_hosts=spans_hosts)
        for name in STEPS:
            model = compiled(name, strategy, lambda optimizer: optimizer)
            exchange = exchanges(strategy, model, EXCHANGES, EPOCHS)
            step = steps(name, model)
            local = compiled(name, strategy, lambda sgd: DeltaAdasum(sgd, local_steps=10**6))
            compute = steps(name, local)
            found[name][kind] = {"compute": compute, "exchange": exchange, "step": step}
    return found


def hidden(own):
    """Return the hidden share of the exchange in each epoch."""
    exchange = np.median(own["exchange"])
    return (np.median(own["compute"]) + exchange - np.array(own["step"])) / exchange


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        rank = int(os.environ["TF_ADASUM_RANK"])
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
        found = work()
        if rank == 0:
            pathlib.Path(arguments.out).write_text(json.dumps(found))
        return
    if reason := slow_links.missing():
        raise SystemExit(reason)
    found = {}
    for mbit in arguments.mbit:
        for threads in BUCKETS:
            os.environ[THREADS] = str(threads)
            found[mbit, threads] = slow_links.on_links(mbit, __file__, hosts=HOSTS, burst_ms=1)
    rows = [
        [name, mbit, bucket, threads]
        + [report.quartiles(own[part], 1000, 0) for part in ("compute", "exchange", "step")]
        + [report.quartiles(hidden(own))]
        for name in STEPS
        for (mbit, threads), of_link in found.items()
        for bucket, own in of_link[name].items()
    ]
    header = ["model", "Mbit/s", "buckets", "threads"]
    header += ["compute, ms", "exchange, ms", "step, ms", "hidden"]
    report.write(
        "overlap",
        "The share of the exchange that is hidden behind backpropagation",
        f"{HOSTS} hosts (network namespaces, `tc tbf` limits each link in both directions) with "
        "one worker each, bound to one core. Adasum over UCX, SGD. *Buckets*: as on one "
        "host, or as by default between hosts: a first bucket of 4 MiB, and small gradients last. "
        "*Threads*: `TF_NUM_INTEROP_THREADS`. *Compute*: a step of `fit` that exchanges nothing "
        "(a local step of `DeltaAdasum`). *Exchange*: the same gradients without backpropagation. "
        "*Step*: a step of `fit`. *Hidden*: (compute + exchange - step) / exchange. Median "
        f"(quartiles) of {EPOCHS} epochs.\n\n" + report.table(header, rows),
    )


if __name__ == "__main__":
    main()
