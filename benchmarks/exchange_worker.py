"""Time reductions of given gradients on every worker, for `benchmarks/exchange.py`.

A *kind* is a way to reduce them: ``"sum"`` (TensorFlow's SUM, as in `MultiWorkerMirroredStrategy`),
``"adasum"`` for Adasum with its defaults, ``"[2, 2]"`` or another list for Adasum with this radix
plan, ``"bfloat16"`` and ``"float16"`` for Adasum with this dtype on the wire, ``"ucx"`` for Adasum
over UCX, and ``"packed"`` for buckets that are also packed over UCX.
"""

import argparse
import json
import time
from unittest import mock

import numpy as np
import report

WIRE_DTYPES = ["bfloat16", "float16"]
WARM_UP = 2  # steps
ROUNDED_ELEMENTS = 10**6


def on_workers(workers, task, transport="tensorflow", **arguments):
    """Run a task on local workers; return its result on worker 0."""
    command = ["--task", task, "--arguments", json.dumps(arguments), "--transport", transport]
    return report.on_workers(workers, __file__, *command)


def times(strategy, cases, steps):
    """Time reductions; within a step the kinds of a case take turns.

    Args:
        cases: list of ``(shapes, kinds)``.
        steps: number of steps.

    Returns:
        For each case and kind the seconds and the CPU seconds of each step.
    """
    import tensorflow as tf

    from tf_adasum.compat import tensorflow as tensorflow_compat

    # The barrier uses the transport of the gradients. A barrier over another transport releases
    # some workers earlier, by 1 ms over TensorFlow's collectives, and this difference would count
    # as time of a small exchange.
    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    barrier = "sum" if collectives.transport is None else "adasum; ucx"
    at_the_start = reduction(strategy, barrier, [tf.constant(0.0)])
    measured = []
    for shapes, kinds in cases:
        random = np.random.default_rng(strategy.rank)
        gradients = [tf.constant(random.standard_normal(s, dtype=np.float32)) for s in shapes]
        reductions = {kind: reduction(strategy, kind, gradients) for kind in kinds}
        seconds, cpu_seconds = ({kind: [] for kind in kinds} for _ in range(2))
        for step in range(WARM_UP + steps):
            for kind in kinds:
                at_the_start()  # all workers start at once
                start, cpu_start = time.perf_counter(), time.process_time()
                reductions[kind]()  # returns when this worker has the result
                if step >= WARM_UP:
                    seconds[kind].append(time.perf_counter() - start)
                    cpu_seconds[kind].append(time.process_time() - cpu_start)
        at_the_start()  # no worker ends while others still receive from it
        measured.append(
            {
                kind: {"seconds": seconds[kind], "cpu_seconds": cpu_seconds[kind]}
                for kind in reductions
            }
        )
    return measured


def rounding(strategy, kinds, scales):
    """Return the relative error ‖result - exact‖ / ‖exact‖ of Adasum, for each kind and scale.

    The gradients are ``scale · (mean + noise_i)`` with standard normal mean and noise, so the
    cosine between the gradients of two replicas is 1/2.
    """
    import tensorflow as tf

    import tf_adasum
    from tf_adasum import cross_device_ops

    def gradient(replica):
        draws = [np.random.default_rng(seed).standard_normal for seed in (0, 1 + replica)]
        return sum(draw(ROUNDED_ELEMENTS).astype(np.float32) for draw in draws)

    errors = {kind: [] for kind in kinds}
    for scale in scales:
        rows = [np.float32(scale) * gradient(i) for i in range(strategy.num_replicas_in_sync)]
        exact = tf_adasum.adasum([tf.constant(row, tf.float64) for row in rows]).numpy()
        own = [tf.constant(rows[strategy.rank])]
        for kind in kinds:
            # Small buckets, too, go through the radix plan.
            with mock.patch.object(cross_device_ops, "GATHERED_BYTES", 0):
                (result,) = reduction(strategy, kind, own)()
            difference = np.linalg.norm(result.numpy() - exact)
            errors[kind].append(float(difference / np.linalg.norm(exact)))
    return errors


def reduction(strategy, kind, gradients):
    """Return the traced function of a kind, which takes no arguments."""
    import tensorflow as tf

    options, parts = None, kind.split("; ")
    if kind != "sum":
        options = strategy.gradient_reduction
        use(strategy, scheme_options(part for part in parts if part not in ("ucx", "packed")))

    def in_replica():
        context = tf.distribute.get_replica_context()
        on_device = [tf.identity(gradient) for gradient in gradients]
        return context.all_reduce("SUM", on_device, options=options)

    with over(strategy, "ucx" in parts, fuses="packed" not in parts):
        return tf.function(lambda: strategy.run(in_replica)).get_concrete_function()


def over(strategy, ucx, fuses):
    """Return a context: functions traced in it send gradients over UCX or over TensorFlow.

    Args:
        strategy: the strategy.
        ucx: whether to use UCX.
        fuses: whether gradients stay unpacked over UCX.
    """
    from tf_adasum.compat import tensorflow as tensorflow_compat

    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    if not ucx:
        return mock.patch.object(collectives, "transport", None)
    return mock.patch.object(collectives.transport, "fuses", fuses)


def scheme_options(parts):
    """Return the strategy's arguments for the parts of a kind."""
    options = {}
    for part in parts:
        if part.startswith("["):
            options["radix_plan"] = json.loads(part)
        elif part in WIRE_DTYPES:
            options["wire_dtype"] = part
        elif part != "adasum":
            raise ValueError(f"No kind of reduction. Received: {part!r}")
    return options


def use(strategy, options):
    """Replace the strategy's scheme, which never changes outside benchmarks and tests."""
    from tf_adasum.aggregation import Scheme
    from tf_adasum.compat import tensorflow as tensorflow_compat

    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    own = collectives.scheme
    collectives.scheme = Scheme.from_arguments(
        strategy.aggregation,
        strategy.num_replicas_in_sync,
        replicas_per_host=own.replicas_per_host,
        spans_hosts=own.spans_hosts,
        **options,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["times", "rounding"], required=True)
    parser.add_argument("--arguments", type=json.loads, required=True)
    parser.add_argument("--transport", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(transport=arguments.transport)
    task = {"times": times, "rounding": rounding}[arguments.task]
    report.save(strategy, task(strategy, **arguments.arguments), arguments.out)


if __name__ == "__main__":
    main()
