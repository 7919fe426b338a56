"""Compare `fit` on several workers: the stock strategy, Horovod, Keras on JAX, and tf_adasum.

    python benchmarks/frameworks.py
    python benchmarks/frameworks.py --small

Times the steps of a CNN with 13,706 parameters and of a model with 25 million on 2 workers, and
reads the peak memory. Each worker of Horovod and of tf_adasum runs on its own share of the cores,
as `mpirun` and `tf-adasum-launch` start it; the others have no launcher. With `--small`, times two
small models on 2 and 4 workers, with each worker on its own share of the cores and with all workers
on all cores. Each framework has its own processes, which take turns. HOROVOD_PYTHON is the Python
of an environment with Horovod (horovod_worker.py), and JAX_PYTHON is the Python of an environment
with `pip install "jax[cpu]" keras`. Writes benchmarks/results/DATE-frameworks.md or
DATE-small_steps.md.
"""

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import report

TURNS = 3
EPOCHS = 6  # the first one traces
WARM_UP = 3  # steps of each epoch that are not timed
SIZES, SMALL_SIZES = ("small", "large"), ("small", "4 MB")
STEPS = {"small": 60, "1 MB": 60, "4 MB": 60, "large": 6}
ROWS = {"small": 8, "1 MB": 8, "4 MB": 8, "large": 32}  # of each worker
MODELS = {
    "small": "a CNN of 13,706 parameters",
    "4 MB": "dense layers of 4 MB of parameters",
    "large": "25.1 million parameters",
}
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
    if framework == "stock":
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


def timed(size, scope, wrapper, factor):
    """Return the seconds of a step in each epoch but the first, and the peak memory in MiB."""
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
    return {"seconds": seconds, "peak": peak}


def worker(arguments):
    """Run as a worker of a framework."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rank, *own = start(arguments.framework, arguments.workers[0])
    measured = {size: timed(size, *own) for size in arguments.sizes}
    if rank == 0:
        pathlib.Path(arguments.folder, "out.json").write_text(json.dumps(measured))


@contextlib.contextmanager
def workers(framework, folder, count, sizes, bind_to):
    """Start the workers, yield their processes or the process of `mpirun`, and kill them."""
    from tf_adasum.cluster.ports import free_ports
    from tf_adasum.launch.cpu_shares import cpu_shares

    with free_ports(count) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
    python = os.environ[PYTHONS[framework]] if framework in PYTHONS else sys.executable
    command = [python, "-u", str(pathlib.Path(__file__)), "--framework", framework]
    command += ["--folder", folder, "--workers", str(count), "--sizes", *sizes]
    environments = [dict(os.environ) for _ in range(count)]
    shares = cpu_shares(max(count, 2)) if bind_to == "cores" else []
    if framework == "horovod":
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(count)]
        mpirun += ["--bind-to", "core:overload-allowed" if shares else "none"]
        command = [*mpirun, "--mca", "pml", "ob1", "--mca", "btl", "vader,self", *command]
        environments, shares = environments[:1], []
    elif framework == "jax":
        address = {"ADDRESS": addresses[0], "KERAS_BACKEND": "jax"}
        environments = [each | address | {"RANK": str(i)} for i, each in enumerate(environments)]
    else:
        for index, each in enumerate(environments):
            task = {"type": "worker", "index": index}
            own = {"cluster": {"worker": addresses}, "task": task}
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


def times(framework, *options):
    """Return what worker 0 measured; the options are arguments of `workers`."""
    with tempfile.TemporaryDirectory() as folder:
        with workers(framework, folder, *options) as processes:
            for process in processes:
                process.wait(report.SECONDS)
        out = pathlib.Path(folder, "out.json")
        if not out.exists():
            raise RuntimeError(f"{framework}: {errors_of(folder)[-1]}")
        return json.loads(out.read_text())


def version_of(framework):
    """Return the versions that a framework runs with."""
    packages = {"horovod": ["horovod", "tensorflow-cpu", "keras"], "jax": ["jax", "keras"]}
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    command = [os.environ[PYTHONS[framework]], "-c", code, *packages[framework]]
    numbers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return ", ".join(map(" ".join, zip(packages[framework], numbers, strict=True)))


def compare(name, title, cases, sizes, turns):
    """Write a report.

    Args:
        name: of the report.
        title: of the report.
        cases: list of framework, number of workers, and what they are bound to: "cores" or "none".
        sizes: the models.
        turns: how often the cases run in turn.
    """
    cases = [case for case in cases if os.environ.get(PYTHONS.get(case[0], "PATH"))]
    measured = {case: [] for case in cases}
    for turn in range(turns):
        for case in cases if turn % 2 == 0 else reversed(cases):
            framework, count, bind_to = case
            measured[case].append(times(framework, count, sizes, bind_to))
            print(*case, measured[case][-1], flush=True)
    rows = []
    for (framework, count, bind_to), own in measured.items():
        seconds = [[each for turn in own for each in turn[size]["seconds"]] for size in sizes]
        peaks = [np.median([turn[size]["peak"] for turn in own]) for size in sizes]
        row = [count, FRAMEWORKS[framework], bind_to]
        row += [report.quartiles(each, 1000, 1) for each in seconds]
        rows.append(row + [f"{peak:.0f}" for peak in peaks])
    header = ["workers", "framework", "bound to", *(f"{size}, ms" for size in sizes)]
    header += [f"{size}, MiB" for size in sizes]
    others = dict.fromkeys(framework for framework, _, _ in cases if framework in PYTHONS)
    others = "; ".join(map(version_of, others)) or "none"
    rows_of_each = ", ".join(f"{ROWS[size]} rows" for size in sizes)
    models = "; ".join(f"*{size}*: {MODELS[size]}" for size in sizes)
    report.write(
        name,
        title,
        f"Workers of one device on one machine. Others: {others}. *Bound to cores*: each "
        "worker runs on its own share of the cores, as `tf-adasum-launch` and `mpirun` start it; "
        "more workers than cores share a core. *None*: all workers run on all cores. "
        f"{models}; each worker has {rows_of_each} of them. SGD. Milliseconds of a step of "
        "`fit` on worker 0: means of the steps of each "
        f"of {EPOCHS - 1} epochs of each of {turns} runs in which the frameworks take turns, here "
        "their median (quartiles). Peak resident memory of worker 0 after each model: medians. The "
        "stock strategy has a fix of `reduce`, without which `fit` fails.\n\n"
        + report.table(header, rows),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small models, on 2 and 4 workers")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--framework", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, nargs="+", default=(2, 4), help="of --small")
    parser.add_argument("--sizes", nargs="+", default=SIZES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.framework:
        worker(arguments)
    elif arguments.small:
        kinds = itertools.product(SMALL_KINDS, arguments.workers, ("cores", "none"))
        cases = sorted(kinds, key=lambda case: case[1])
        title = "Steps of small models, with workers bound to cores and not"
        compare("small_steps", title, cases, SMALL_SIZES, arguments.turns)
    else:
        cases = [(each, 2, "cores" if each in BOUND else "none") for each in COMPARED]
        title = "`fit` on two workers: stock strategy, Horovod, Keras on JAX, tf_adasum"
        compare("frameworks", title, cases, SIZES, arguments.turns)


if __name__ == "__main__":
    main()
