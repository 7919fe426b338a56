"""Measure the peak memory of combining the gradients of a large embedding, sparse and densified.

    python benchmarks/sparse_memory.py

Two workers on this machine combine gradients of an embedding of 1,000,000 × 64 float32 numbers. A
batch uses 512 of its rows. The gradients are combined as `tf.IndexedSlices` (sparse), and after
`tf.convert_to_tensor` (densified). The baseline is the sparse case with an embedding of 1,000 rows.
Every measurement runs in new processes. Writes benchmarks/results/DATE-sparse_memory.md.
"""

import argparse
import resource

import numpy as np
import report

WORKERS = 2
ROWS, WIDTH = 1_000_000, 64
TOUCHED = 512
KINDS = {"baseline": 1_000, "sparse": ROWS, "densified": ROWS}  # rows of the embedding
STEPS = 5


def measure(kind, out):
    """Return the peak memory in bytes, on every worker."""
    import tensorflow as tf

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    random = np.random.default_rng(strategy.rank)
    rows = KINDS[kind]
    indices = tf.constant(random.choice(rows, TOUCHED, replace=False))
    values = tf.constant(random.standard_normal([TOUCHED, WIDTH], dtype=np.float32))

    def in_replica(values, indices):
        gradient = tf.IndexedSlices(values, indices, tf.constant([rows, WIDTH], tf.int64))
        if kind == "densified":
            gradient = tf.convert_to_tensor(gradient)
        context = tf.distribute.get_replica_context()
        (combined,) = context.all_reduce("SUM", [gradient], options=strategy.gradient_reduction)
        assert isinstance(combined, tf.IndexedSlices) == (kind != "densified")
        return tf.reduce_sum(combined.values if kind != "densified" else combined)

    step = tf.function(lambda *own: strategy.run(in_replica, args=own))
    for _ in range(STEPS):
        step(values, indices)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.save(strategy, peak, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure(arguments.worker, arguments.out)
        return
    peaks = {kind: [] for kind in KINDS}
    for _ in range(arguments.runs):
        for kind, own in peaks.items():
            own.append(report.on_workers(WORKERS, __file__, "--worker", kind))
    baseline = np.median(peaks["baseline"])
    extra = {kind: np.median(own) - baseline for kind, own in peaks.items()}
    rows = [
        [
            kind,
            f"{KINDS[kind]:,} × {WIDTH}",
            report.quartiles(own, scale=1e-6, digits=0),
            f"{extra[kind] / 1e6:.1f}",
            f"{extra[kind] / (4 * ROWS * WIDTH):.3f}",
        ]
        for kind, own in peaks.items()
    ]
    header = ["gradients", "embedding", "peak, MB", "extra, MB", "extra / embedding"]
    body = (
        f"{WORKERS} workers, {TOUCHED} rows touched by each, {STEPS} steps. Peak memory of worker "
        f"0's process, median (quartiles) of {arguments.runs} runs of each kind; extra is the "
        "difference of its median from the baseline's, in MB and in units of the "
        f"{4 * ROWS * WIDTH / 1e6:.0f} MB of the large embedding.\n\n"
        + report.table(header, rows)
        + f"\n\nExtra memory, sparse / densified: {extra['sparse'] / extra['densified']:.4f}."
    )
    report.write("sparse_memory", "Memory of a sparse gradient's combination", body)


if __name__ == "__main__":
    main()
