"""Time the compiled CPU kernels against the speed of memory, stock TensorFlow and NumPy.

    python benchmarks/kernels_cpu.py

The floor of `pairwise_combine` is the time to move the necessary bytes: both vectors are read for
the coefficients, and read again while the result is written, in place. The floor is measured with
loops that do nothing else (stream.cc), in memory that TensorFlow allocates: a read of two vectors
plus a STREAM triad. Everything is measured in turn in one process, with 1 and then with 2 threads.
A call of a kernel is one of a chain of 24 to 300 inside one `tf.function`, as in a training step.
The first call writes to new memory, which takes much longer; the other calls write in place. Writes
benchmarks/results/DATE-kernels_cpu.md.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import report

SIZES = [10**4, 10**5, 10**6, 10**7, 10**8]
ROW_COUNTS = [2, 4, 8, 16]
ROW_ELEMENTS = 4_000_000
FLOAT = 4  # bytes
PAIRWISE_COLUMNS = ["threads", "elements", "ms", "GB/s", "triad GB/s", "time / floor"]
PAIRWISE_COLUMNS += ["TensorFlow / ours", "NumPy / ours"]
ROWS_COLUMNS = ["threads", "R", "triad GB/s", "gram GB/s", "matmul / gram", "weighted sum GB/s"]


def yardsticks(folder):
    """Compile the loops of stream.cc for this machine, and load them."""
    library = pathlib.Path(folder, "stream.so")
    source = pathlib.Path(__file__).with_name("stream.cc")
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, source, "-o", library], check=True)
    stream = ctypes.CDLL(str(library))
    stream.read_two.restype = ctypes.c_float
    pointer = np.ctypeslib.ndpointer(np.float32)
    stream.read_two.argtypes = [pointer, pointer, ctypes.c_int64]
    stream.triad.argtypes = [pointer, pointer, ctypes.c_float, ctypes.c_int64, pointer]
    return stream


def in_turn(calls, rounds):
    """Return the seconds of each call in each round.

    Every round makes all calls, so they share its noise. Each call is made twice, and the second
    one is timed, so that it finds the memory as the same call left it.
    """
    seconds = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: np.array(values) for name, values in seconds.items()}


def array_of(tensor):
    """Return the memory of a tensor as a writable array, which keeps the tensor alive."""
    view = np.asarray(memoryview(tensor))
    memory = (ctypes.c_float * view.size).from_address(view.ctypes.data)
    memory.tensor = tensor
    return np.ctypeslib.as_array(memory)


def measure_pairwise(stream, count, rounds):
    """Return the seconds of one combination of two vectors of `count` floats, by each method."""
    import tensorflow as tf

    import tf_adasum.ops as ops

    chain = int(np.clip(10**8 // count, 4, 300))
    long_chain = max(chain, 24)
    random = np.random.default_rng(0)
    a, b, spare = (tf.constant(random.standard_normal(count, np.float32)) for _ in range(3))
    # The loops of stream.cc use TensorFlow's memory, because NumPy's memory has larger pages, which
    # are faster.
    work, work_b, work_spare = (array_of(tensor) for tensor in (a + 0, b, spare))

    def stock(x, y):
        xy, xx, yy = tf.reduce_sum(x * y), tf.reduce_sum(x * x), tf.reduce_sum(y * y)
        return (1 - xy / (2 * xx)) * x + (1 - xy / (2 * yy)) * y

    def numpy():
        xy, xx, yy = np.dot(work, work_b), np.dot(work, work), np.dot(work_b, work_b)
        np.multiply(work, 1 - xy / (2 * xx), out=work)
        np.multiply(work_b, 1 - xy / (2 * yy), out=work_spare)
        np.add(work, work_spare, out=work)

    def chained(combine, length):
        @tf.function
        def run(x, y):
            for _ in range(length):
                x = combine(x, y)
            return x[0]  # the vector is not returned, so it can be overwritten

        return lambda: run(a, b).numpy()

    def repeated(call):
        return lambda: [call() for _ in range(chain)]

    def ours(x, y):
        return ops.pairwise_combine(x, y, device="CPU:0")

    seconds = in_turn(
        {
            "read": repeated(lambda: stream.read_two(work, work_b, count)),
            "triad": repeated(lambda: stream.triad(work, work_b, 1e-3, count, work)),
            "adasum": chained(ours, long_chain),
            "tensorflow": chained(stock, chain),
            "numpy": repeated(numpy),
        },
        rounds,
    )
    links = {name: long_chain if name == "adasum" else chain for name in seconds}
    return {name: (values / links[name]).tolist() for name, values in seconds.items()}


def measure_rows(stream, row_count, rounds):
    """Return the seconds of the two operations on `row_count` rows, and of a triad of one row."""
    import tensorflow as tf

    import tf_adasum.ops as ops

    random = np.random.default_rng(0)
    rows = random.standard_normal([row_count, ROW_ELEMENTS], dtype=np.float32)
    a, b, out = rows[0].copy(), rows[1].copy(), np.empty_like(rows[0])
    tensor = tf.constant(rows)
    segments = tf.constant([0, ROW_ELEMENTS // 3, ROW_ELEMENTS], tf.int64)
    coefficients = tf.constant(random.standard_normal([2, row_count]))
    gram = tf.function(lambda x: ops.segment_gram(x, segments, device="CPU:0"))
    weighted_sum = tf.function(
        lambda x: ops.segment_weighted_sum(x, coefficients, segments, device="CPU:0")
    )
    stock = tf.function(lambda x: tf.matmul(x, x, transpose_b=True))
    seconds = in_turn(
        {
            "triad": lambda: stream.triad(a, b, 1e-3, ROW_ELEMENTS, out),
            "gram": lambda: gram(tensor),
            "weighted_sum": lambda: weighted_sum(tensor),
            "matmul": lambda: stock(tensor),
        },
        rounds,
    )
    return {name: values.tolist() for name, values in seconds.items()}


def measure(threads, rounds, sizes):
    """Measure everything with a number of threads, which a process can set only once."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        stream = yardsticks(folder)
        return {
            "pairwise": {str(n): measure_pairwise(stream, n, rounds) for n in sizes},
            "rows": {str(r): measure_rows(stream, r, rounds) for r in ROW_COUNTS},
        }


def pairwise_row(threads, count, seconds):
    seconds = {name: np.array(values) for name, values in seconds.items()}
    floor = seconds["read"] + seconds["triad"]
    moved = 5 * FLOAT * int(count)
    triad_speed = np.median(3 * FLOAT * int(count) / seconds["triad"])
    return [
        threads,
        f"{int(count):.0e}".replace("e+0", "e"),
        report.quartiles(seconds["adasum"], 1000, 3),
        f"{np.median(moved / seconds['adasum']) / 1e9:.1f}",
        f"{triad_speed / 1e9:.1f}",
        report.quartiles(seconds["adasum"] / floor),
        report.quartiles(seconds["tensorflow"] / seconds["adasum"], digits=1),
        report.quartiles(seconds["numpy"] / seconds["adasum"], digits=1),
    ]


def rows_row(threads, row_count, seconds):
    seconds = {name: np.array(values) for name, values in seconds.items()}
    row = FLOAT * ROW_ELEMENTS

    def speed(name, rows_moved):
        return report.quartiles(rows_moved * row / seconds[name] / 1e9, digits=1)

    return [
        threads,
        row_count,
        speed("triad", 3),
        speed("gram", int(row_count)),
        report.quartiles(seconds["matmul"] / seconds["gram"], digits=1),
        speed("weighted_sum", int(row_count) + 1),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.rounds, arguments.sizes)))
        return
    pairwise, rows = [], []
    for threads in arguments.threads:
        command = [sys.executable, __file__, "--measure", str(threads)]
        command += ["--rounds", str(arguments.rounds), "--sizes", *map(str, arguments.sizes)]
        passive = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        passive |= {"OMP_WAIT_POLICY": "passive", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            command, env=os.environ | passive, stdout=subprocess.PIPE, check=True, timeout=1800
        )
        measured = json.loads(done.stdout)
        pairwise += [pairwise_row(threads, n, s) for n, s in measured["pairwise"].items()]
        rows += [rows_row(threads, r, s) for r, s in measured["rows"].items()]
    body = (
        f"Medians (quartiles) of {arguments.rounds} rounds, float32. One vector of `elements` in "
        "one segment, combined in place by `pairwise_combine` inside a `tf.function`; the floor is "
        "a read of two vectors plus a triad. GB/s counts 5 vectors for `pairwise_combine`, 3 for "
        "the triad. Below a million elements the yardsticks mostly show what a call costs.\n\n"
        + report.table(PAIRWISE_COLUMNS, pairwise)
        + f"\n\nR rows of {ROW_ELEMENTS:,} elements in two segments: GB/s of the rows read (and of "
        "the result written into new memory), and `tf.matmul(rows, rows, transpose_b=True)` over "
        "`segment_gram`, which sums in double.\n\n" + report.table(ROWS_COLUMNS, rows)
    )
    report.write("kernels_cpu", "CPU kernels against the memory's speed", body)


if __name__ == "__main__":
    main()
