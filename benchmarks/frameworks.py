"""Compare `fit` on two workers: the stock strategy, Horovod, Keras on JAX, and tf_adasum.

    python benchmarks/frameworks.py
    python benchmarks/frameworks.py --small

Times the steps of a CNN with 13,706 parameters and of a model with 25 million, and reads the peak
memory of each. With `--small`, times smaller models on 2 and 4 workers, with each worker on its own
share of the cores and with all workers on all cores. Each framework has its own processes, which
take turns. Otherwise each worker of Horovod and of tf_adasum runs on its own share of the cores, as
`mpirun` and `tf-adasum-launch` start it; the other frameworks have no launcher. HOROVOD_PYTHON is
the Python of an environment with Horovod (horovod_worker.py), and JAX_PYTHON is the Python of an
environment with `pip install "jax[cpu]" keras`. Writes benchmarks/results/DATE-frameworks.md or
DATE-small_steps.md.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import report

WORKERS = 2
TURNS = 3
EPOCHS = 6  # the first one traces
WARM_UP = 3  # steps of each epoch that are not timed
SIZES, SMALL_SIZES = ("small", "large"), ("small", "1 MB", "4 MB")
STEPS = {"small": 60, "1 MB": 60, "4 MB": 60, "large": 6}
ROWS = {"small": 8, "1 MB": 8, "4 MB": 8, "large": 32}  # of each worker
SHAPES = {"small": (8, 8, 1), "1 MB": (64,), "4 MB": (64,), "large": (1024,)}
WIDTHS = {"1 MB": (512, 416, 10), "4 MB": (1024, 896, 10), "large": (4096, 4096, 1000)}
# Lines of worker 0's output with one of these texts may explain why it exits.
ERROR = ("Error: ", "UNAVAILABLE", "ABORTED", "DEADLINE", "unhealthy", "exited on signal")
FRAMEWORKS = {
    "stock": "stock strategy, with a fix",
    "horovod": "Horovod, mean",
    "jax": "Keras on JAX, mean",
    "tf_adasum": "tf_adasum, Adasum",
    "tf_adasum_mean": "tf_adasum, mean",
    "one": "one process, no strategy",
}
BOUND = ("horovod", "tf_adasum")  # their launchers bind workers to cores
COMPARED = ("stock", "horovod", "jax", "tf_adasum")
SMALL_KINDS = ("horovod", "stock", "tf_adasum", "tf_adasum_mean")
PYTHONS = {"horovod": "HOROVOD_PYTHON", "jax": "JAX_PYTHON"}


def model_of(size):
    """Return a model that is not compiled."""
    import keras
    from keras.layers import Conv2D, Dense, Flatten, Input, MaxPooling2D

    keras.utils.set_random_seed(0)
    if size in WIDTHS:
        *hidden, classes = WIDTHS[size]
        dense = [*(Dense(width, "relu") for width in hidden), Dense(classes)]
        return keras.Sequential([Input(SHAPES[size]), *dense])
    two = {"padding": "same", "activation": "relu"}
    layers = [Input(SHAPES[size]), Conv2D(16, 3, **two), MaxPooling2D(2), Conv2D(32, 3, **two)]
    layers += [MaxPooling2D(2), Flatten(), Dense(64, activation="relu"), Dense(10)]
    return keras.Sequential(layers)


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


def start(framework, workers):
    """Connect the workers; return rank, scope, the optimizer's wrapper, and the batch factor.

    The batch of a worker is multiplied by this factor. It is the number of workers for a strategy,
    which receives the rows of all workers and divides them; for the other frameworks it is 1.
    """
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
    if framework == "one":
        return rank, contextlib.nullcontext, lambda optimizer: optimizer, 1
    if framework == "horovod":
        import horovod.tensorflow.keras as hvd

        hvd.init()
        return rank, contextlib.nullcontext, hvd.DistributedOptimizer, 1
    if framework == "jax":
        import keras

        keras.distribution.initialize(os.environ["ADDRESS"], workers, rank)
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
        return rank, contextlib.nullcontext, lambda optimizer: optimizer, 1
    if framework == "unmodified":
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    elif framework == "stock":
        strategy = stock_strategy()
    else:
        import tf_adasum

        rule = "mean" if framework == "tf_adasum_mean" else "adasum"
        strategy = tf_adasum.AdasumMirroredStrategy(aggregation=rule)
    return rank, strategy.scope, lambda optimizer: optimizer, workers


def compiled(size, scope, wrapper):
    """Return the compiled model."""
    import keras

    with scope():
        model = model_of(size)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=wrapper(keras.optimizers.SGD(0.001)), loss=loss)
    return model


def rows_of(size, count):
    """Return random inputs and classes."""
    random = np.random.default_rng(0)
    x = random.standard_normal([count, *SHAPES[size]], dtype=np.float32)
    return x, random.integers(0, 10, count)


def timed(size, scope, wrapper, factor, calls=False):
    """Return the seconds of a step in each epoch but the first, and the peak memory in MiB.

    With `calls`, also return the seconds of a step in each call of `evaluate` and `predict`, which
    fail with JAX.
    """
    import keras

    seconds = []

    class Stopwatch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == WARM_UP:
                self.start = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            if epoch:
                seconds.append((time.perf_counter() - self.start) / STEPS[size])

    model = compiled(size, scope, wrapper)
    x, y = rows_of(size, ROWS[size] * factor * (WARM_UP + STEPS[size]))
    batch = {"batch_size": ROWS[size] * factor, "shuffle": False, "verbose": 0}
    model.fit(x, y, **batch, epochs=EPOCHS, callbacks=[Stopwatch()])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    measured = {"seconds": seconds, "peak": peak}
    if calls:
        del batch["shuffle"]
        methods = {"evaluate": functools.partial(model.evaluate, y=y), "predict": model.predict}
        for name, call in methods.items():
            starts = [time.perf_counter()]
            for _ in range(EPOCHS):
                call(x, **batch)
                starts.append(time.perf_counter())
            measured[name] = (np.diff(starts)[1:] / (WARM_UP + STEPS[size])).tolist()
    return measured


def worker(arguments):
    """Run as a worker of a framework."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rank, *own = start(arguments.framework, arguments.workers)
    measured = {
        size: timed(size, *own, arguments.calls and size == "small") for size in arguments.sizes
    }
    if rank == 0:
        pathlib.Path(arguments.folder, "out.json").write_text(json.dumps(measured))


def free_port():
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def workers(framework, folder, count=WORKERS, sizes=SIZES, bind_to="cores", calls=False):
    """Start the workers, yield their processes or the process of `mpirun`, and kill them."""
    from tf_adasum.launch.cpu_shares import cpu_shares

    python = os.environ[PYTHONS[framework]] if framework in PYTHONS else sys.executable
    command = [python, "-u", str(pathlib.Path(__file__)), "--framework", framework]
    command += ["--folder", folder, "--workers", str(count), "--sizes", *sizes]
    command += ["--calls"] if calls else []
    environments = [dict(os.environ) for _ in range(count)]
    shares = cpu_shares(max(count, 2)) if bind_to == "cores" else []
    if framework == "horovod":
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(count)]
        mpirun += ["--bind-to", "core:overload-allowed" if shares else "none"]
        command = [*mpirun, "--mca", "pml", "ob1", "--mca", "btl", "vader,self", *command]
        environments, shares = environments[:1], []
    elif framework == "jax":
        address = {"ADDRESS": f"127.0.0.1:{free_port()}", "KERAS_BACKEND": "jax"}
        environments = [each | address | {"RANK": str(i)} for i, each in enumerate(environments)]
    else:
        cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(count)]}
        for index, each in enumerate(environments):
            own = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            each |= {"TF_CONFIG": json.dumps(own), "RANK": str(index)}
    with contextlib.ExitStack() as stack:
        processes = []
        for index, each in enumerate(environments):
            log = stack.enter_context(open(pathlib.Path(folder, f"{index}.log"), "wb"))
            # A new process group, so that the process can be killed with all its children.
            options = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen(command, env=each, **options)
            processes.append(process)
            if shares:
                os.sched_setaffinity(process.pid, shares[index])
        try:
            yield processes
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def errors_of(folder):
    """Return the lines of worker 0's output that name an error; the last line if none does."""
    lines = pathlib.Path(folder, "0.log").read_text(errors="replace").splitlines()
    lines = [line.strip() for line in lines if line.strip()]
    return [line for line in lines if any(each in line for each in ERROR)] or lines[-1:]


def times(framework, **options):
    """Return what worker 0 measured; the options are arguments of `workers`."""
    with tempfile.TemporaryDirectory() as folder:
        with workers(framework, folder, **options) as processes:
            for process in processes:
                process.wait(report.SECONDS)
        out = pathlib.Path(folder, "out.json")
        if not out.exists():
            raise RuntimeError(f"{framework}: {errors_of(folder)[-1]}")
        return json.loads(out.read_text())


def error_of_unmodified():
    """Return the error of `fit` under the unmodified stock strategy."""
    try:
        times("unmodified")
    except RuntimeError as error:
        return str(error).partition(": ")[2]
    return "none"


def version_of(framework):
    """Return the versions that a framework runs with."""
    packages = {"horovod": ["horovod", "tensorflow-cpu", "keras"], "jax": ["jax", "keras"]}
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    command = [os.environ[PYTHONS[framework]], "-c", code, *packages[framework]]
    numbers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return ", ".join(map(" ".join, zip(packages[framework], numbers, strict=True)))


def is_present(framework):
    """Return whether the framework is installed."""
    return bool(os.environ.get(PYTHONS.get(framework, "PATH")))


def compare(turns):
    """Write the report of steps and memory."""
    present = [each for each in COMPARED if is_present(each)]
    versions = "; ".join(version_of(each) for each in present if each in PYTHONS)
    measured = collections.defaultdict(list)
    for turn in range(turns):
        for framework in present if turn % 2 == 0 else reversed(present):
            bind_to = "cores" if framework in BOUND else "none"
            measured[framework].append(times(framework, bind_to=bind_to))
            print(framework, measured[framework][-1], flush=True)
    rows = []
    for framework in present:
        row = [FRAMEWORKS[framework]]
        for size in SIZES:
            own = [seconds for turn in measured[framework] for seconds in turn[size]["seconds"]]
            row.append(report.quartiles(own, 1000, 1))
        for size in SIZES:
            row.append(f"{np.median([turn[size]['peak'] for turn in measured[framework]]):.0f}")
        rows.append(row)
    header = ["framework", "small, ms", "large, ms", "small, MiB", "large, MiB"]
    report.write(
        "frameworks",
        "`fit` on two workers: stock strategy, Horovod, Keras on JAX, tf_adasum",
        f"{WORKERS} workers of one device on one machine. Others: {versions}. Each worker of "
        "Horovod and of tf_adasum runs on its own share of the "
        "cores, as `mpirun` and `tf-adasum-launch` start it; the others run on all cores. *Small*: "
        f"a CNN of 13,706 parameters, {ROWS['small']} rows of each worker. "
        f"*Large*: 25.1 million parameters, {ROWS['large']} rows of each worker. SGD. Milliseconds "
        f"of a step of `fit` on worker 0: means of {STEPS['small']} and {STEPS['large']} steps in "
        f"{EPOCHS - 1} epochs of each of {turns} runs in which the frameworks take turns, here "
        "their median (quartiles). Peak resident memory of worker 0 after the small model, and "
        "after both: medians. The stock strategy has a fix of `reduce`; without it `fit` ends in "
        f"`{error_of_unmodified()[:200]}`.\n\n" + report.table(header, rows),
    )


def measured_small(workers, turns, kinds):
    """Return the measurements of each turn, for each kind and each binding."""
    found = collections.defaultdict(list)
    cases = [(kind, bind_to) for kind in kinds for bind_to in ("cores", "none")]
    for turn in range(turns):
        for kind, bind_to in cases if turn % 2 == 0 else reversed(cases):
            count = 1 if kind == "one" else workers
            own = times(kind, count=count, sizes=SMALL_SIZES, bind_to=bind_to, calls=True)
            found[kind, bind_to].append(own)
            print(workers, kind, bind_to, own, flush=True)
    return found


def seconds_of(turns, size, call):
    """Return the seconds of a step in all epochs of all turns."""
    return [each for turn in turns for each in turn[size][call]]


def small_rows(workers, found):
    """Yield one row for each kind and each binding."""
    for (kind, bind_to), turns in found.items():
        row = [1 if kind == "one" else workers, FRAMEWORKS[kind], bind_to]
        row += [
            report.quartiles(seconds_of(turns, size, "seconds"), 1000, 1) for size in SMALL_SIZES
        ]
        for other in ("horovod", "stock"):
            row.append(ratio(found, kind, bind_to, other))
        for call in ("evaluate", "predict"):
            row.append(report.quartiles(seconds_of(turns, "small", call), 1000, 1))
        yield row


def ratio(found, kind, bind_to, other):
    """Return the small model's ratio of medians in each turn: its median (lowest..highest)."""
    if not found.get((other, bind_to)):
        return ""
    ratios = [
        np.median(own["small"]["seconds"]) / np.median(theirs["small"]["seconds"])
        for own, theirs in zip(found[kind, bind_to], found[other, bind_to], strict=True)
    ]
    return f"{np.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def compare_small(counts, turns):
    """Write the report of small models on several numbers of workers, bound and not."""
    kinds = [each for each in (*SMALL_KINDS, "one") if is_present(each)]
    body = []
    for workers in counts:
        body += small_rows(workers, measured_small(workers, turns, kinds))
    header = ["workers", "framework", "bound to", *(f"{size}, ms" for size in SMALL_SIZES)]
    header += ["small / Horovod", "small / stock", "evaluate, ms", "predict, ms"]
    report.write(
        "small_steps",
        "Steps of small models, with workers bound to cores and not",
        "*Small*: a CNN of 13,706 parameters; *1 MB* and *4 MB*: dense models of so many bytes of "
        f"parameters; {ROWS['small']} rows of each worker, SGD. *Bound to cores*: each "
        "worker runs on its own share of the cores, as `tf-adasum-launch` and `mpirun` arrange it "
        "for up to as many workers as cores; more workers share a core. *None*: all workers run "
        f"on all cores. Milliseconds of a step of `fit` on worker 0: means of {STEPS['small']} "
        f"steps in {EPOCHS - 1} epochs of each of {turns} runs in which the frameworks "
        "take turns, here their median (quartiles). Ratios: of the medians of a turn, median "
        "(lowest..highest). `evaluate` and `predict`: a whole call with the small model, divided "
        f"by its {WARM_UP + STEPS['small']} steps. The stock strategy has a fix of `reduce`. "
        f"{version_of('horovod') if 'horovod' in kinds else 'No Horovod'}.\n\n"
        + report.table(header, body),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small models, on 2 and 4 workers")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--framework")
    parser.add_argument("--folder")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    arguments = parser.parse_args()
    if arguments.framework:
        worker(arguments)
    elif arguments.small:
        compare_small((2, 4), arguments.turns)
    else:
        compare(arguments.turns)


if __name__ == "__main__":
    main()
