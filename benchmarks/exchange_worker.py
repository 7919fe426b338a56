"""Time reductions of given gradients on every worker, for `benchmarks/exchange.py`.

A *kind* is a way to reduce them: ``"sum"`` (TensorFlow's SUM, as in `MultiWorkerMirroredStrategy`),
``"adasum"`` for Adasum with its defaults, ``"[2, 2]"`` or another list for Adasum with this radix
plan, ``"bfloat16"`` and ``"float16"`` for Adasum with this dtype on the wire, ``"ucx"`` for Adasum
over UCX, ``"packed"`` for buckets that are also packed over UCX, and ``"arithmetic"`` for the inner
products and the weighted sum of one level over all replicas, without communication.
"""

import argparse
import contextlib
import json
import os
import resource
import time
from unittest import mock

import numpy as np
import report

WIRE_DTYPES = ["bfloat16", "float16"]
WARM_UP = 2  # steps
ROUNDED_ELEMENTS = 10**6


def on_workers(workers, devices, task, transport="tensorflow", **arguments):
    """Run a task on local workers, each with a number of devices.

    Returns:
        The result of the task on worker 0, and the peak memory of that process in bytes.
    """
    command = ["--devices", str(devices), "--task", task, "--arguments", json.dumps(arguments)]
    command += ["--transport", transport]
    done = report.on_workers(workers, __file__, *command)
    return done["measured"], done["peak"]


def times(strategy, cases, steps, gathers_small_buckets=True):
    """Time reductions; within a step the kinds of a case take turns.

    Args:
        cases: list of ``(shapes, kinds)``.
        steps: number of steps.
        gathers_small_buckets: False also sends small buckets through the radix plan.

    Returns:
        For each case and kind the seconds and the CPU seconds of each step, and the bytes sent
        per replica.
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
        with (
            contextlib.nullcontext() if gathers_small_buckets else without_small_bucket_gathering()
        ):
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
        devices = len(strategy.extended.worker_devices)
        measured.append(
            {
                kind: {
                    "seconds": seconds[kind],
                    "cpu_seconds": cpu_seconds[kind],
                    "sent": sent_bytes(function.graph) / devices,
                }
                for kind, function in reductions.items()
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

    def gradient(replica):
        draws = [np.random.default_rng(seed).standard_normal for seed in (0, 1 + replica)]
        return sum(draw(ROUNDED_ELEMENTS).astype(np.float32) for draw in draws)

    errors = {kind: [] for kind in kinds}
    for scale in scales:
        rows = [np.float32(scale) * gradient(i) for i in range(strategy.num_replicas_in_sync)]
        exact = tf_adasum.adasum([tf.constant(row, tf.float64) for row in rows]).numpy()
        own = [tf.constant(rows[strategy.rank])]
        for kind in kinds:
            with without_small_bucket_gathering():
                (result,) = reduction(strategy, kind, own)()
            difference = np.linalg.norm(result.numpy() - exact)
            errors[kind].append(float(difference / np.linalg.norm(exact)))
    return errors


def without_small_bucket_gathering():
    """Return a context: functions traced in it also send small buckets through the radix plan."""
    from tf_adasum import cross_device_ops

    return mock.patch.object(cross_device_ops, "GATHERED_BYTES", 0)


def reduction(strategy, kind, gradients):
    """Return the traced function of a kind, which takes no arguments."""
    import tensorflow as tf

    if kind == "arithmetic":
        return arithmetic(strategy.num_replicas_in_sync, gradients)
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


@contextlib.contextmanager
def over(strategy, ucx, fuses):
    """Return a context: functions traced in it send gradients over UCX or over TensorFlow.

    Args:
        strategy: the strategy.
        ucx: whether to use UCX.
        fuses: whether gradients stay unpacked over UCX.
    """
    from tf_adasum.compat import tensorflow as tensorflow_compat

    collectives = tensorflow_compat.cross_device_ops(strategy.extended)
    saved = collectives.transport
    if not ucx:
        collectives.transport = None
    else:
        saved.fuses = fuses
    try:
        yield
    finally:
        collectives.transport = saved
        if ucx:
            saved.fuses = True


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


def arithmetic(replicas, gradients):
    """Return a function with the two passes over a replica's shard of all replicas' gradients."""
    import tensorflow as tf

    from tf_adasum import ops

    sizes = [gradient.shape.num_elements() // replicas for gradient in gradients]
    segments = np.cumsum([0, *sizes])
    coefficients = tf.ones([len(sizes), replicas], tf.float64)
    random = np.random.default_rng(0)
    rows = tf.constant(random.standard_normal([replicas, segments[-1]], dtype=np.float32))

    @tf.function
    def passes():
        gram = ops.segment_gram(rows, segments)
        with tf.control_dependencies([gram]):
            return ops.segment_weighted_sum(rows, coefficients, segments)

    return passes.get_concrete_function()


def sent_bytes(graph):
    """Return the bytes that the collectives of a traced function send.

    With R members and an input of n bytes, an all-to-all sends (R-1)/R n bytes, and so does each of
    the two collectives of an unpacked bucket. An all-gather sends (R-1) n bytes, and a ring
    all-reduce sends 2 (R-1)/R n bytes.
    """
    import tensorflow as tf

    shares = {
        "CollectiveAllToAllV2": lambda members: (members - 1) / members,
        "CollectiveGatherV2": lambda members: members - 1,
        "CollectiveReduceV2": lambda members: 2 * (members - 1) / members,
        "TfAdasumUcxAllToAll": lambda members: (members - 1) / members,
        "TfAdasumUcxAllGather": lambda members: members - 1,
        "TfAdasumUcxScatterGram": lambda members: (members - 1) / members,
        "TfAdasumUcxCombineGather": lambda members: (members - 1) / members,
    }
    total = 0
    for operation in graph.get_operations():
        if operation.type in shares:
            values = operation.inputs[:1]
            if "Ucx" in operation.type:
                members = len(operation.get_attr("members"))
                if operation.type.endswith(("ScatterGram", "CombineGather")):
                    values = operation.inputs[: operation.get_attr("S")]
            else:
                members = int(tf.get_static_value(operation.inputs[1]))
            size = sum(value.shape.num_elements() * value.dtype.size for value in values)
            total += shares[operation.type](members) * size
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", required=True)
    parser.add_argument("--task", choices=["times", "rounding"], required=True)
    parser.add_argument("--arguments", type=json.loads, required=True)
    parser.add_argument("--transport", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    os.environ["TF_ADASUM_DEVICES_PER_WORKER"] = arguments.devices
    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(transport=arguments.transport)
    task = {"times": times, "rounding": rounding}[arguments.task]
    measured = task(strategy, **arguments.arguments)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.save(strategy, {"measured": measured, "peak": peak}, arguments.out)


if __name__ == "__main__":
    main()
