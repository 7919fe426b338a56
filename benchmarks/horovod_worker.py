"""Measure Horovod's SUM and Adasum, for `benchmarks/exchange.py`.

Horovod 0.28.1 needs a separate environment, with TensorFlow 2.15 and MPI for CPUs:

    apt-get install libopenmpi-dev openmpi-bin cmake
    pip install tensorflow-cpu==2.15.*
    HOROVOD_WITH_MPI=1 HOROVOD_CPU_OPERATIONS=MPI HOROVOD_WITH_TENSORFLOW=1 \\
        HOROVOD_WITHOUT_GLOO=1 pip install --no-build-isolation horovod==0.28.1

exchange.py measures Horovod if HOROVOD_PYTHON is the path of that environment's Python, which runs
this file under `mpirun`.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

PYTHON = "HOROVOD_PYTHON"
WARM_UP = 3  # steps
SECONDS = 600

# Open MPI's transports: single copies through shared memory, or sockets.
TRANSPORTS = {"shared memory": "vader,self", "TCP": "tcp,self"}


def is_available():
    """Return whether HOROVOD_PYTHON names a Python with Horovod."""
    return bool(os.environ.get(PYTHON))


def on_workers(workers, way, **arguments):
    """Run `times` under `mpirun`; return what rank 0 returned.

    Args:
        workers: the number of workers.
        way: a key of `TRANSPORTS`.
        arguments: the other arguments of `times`.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(workers)]
        command += ["--bind-to", "core:overload-allowed"]  # as tf-adasum-launch does
        command += ["--mca", "pml", "ob1", "--mca", "btl", TRANSPORTS[way]]
        command += [os.environ[PYTHON], str(pathlib.Path(__file__))]
        command += ["--arguments", json.dumps(arguments), "--out", file.name]
        subprocess.run(command, check=True, timeout=SECONDS)
        return json.load(file)


def times(hvd, shapes, steps):
    """Return for "sum" and "adasum" the seconds of each reduction of gradients of these shapes."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(hvd.rank())
    gradients = [tf.constant(random.standard_normal(s, dtype=np.float32)) for s in shapes]

    def traced(kind, operation):
        def reduce():
            return [
                hvd.allreduce(tf.identity(gradient), op=operation, name=f"{kind}{number}")
                for number, gradient in enumerate(gradients)
            ]

        return tf.function(reduce).get_concrete_function()

    reductions = {"sum": traced("sum", hvd.Sum), "adasum": traced("adasum", hvd.Adasum)}
    seconds = {kind: [] for kind in reductions}
    for step in range(WARM_UP + steps):
        for kind, reduction in reductions.items():
            hvd.allreduce(tf.constant(0.0), name="start")  # all workers start at once
            start = time.perf_counter()
            reduction()
            if step >= WARM_UP:
                seconds[kind].append(time.perf_counter() - start)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arguments", type=json.loads, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import horovod.tensorflow as hvd

    hvd.init()
    measured = times(hvd, **arguments.arguments)
    if hvd.rank() == 0:
        pathlib.Path(arguments.out).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
