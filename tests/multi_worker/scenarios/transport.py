"""What the workers do for tests of the transport: the same over TensorFlow's and over UCX."""

import collections
import contextlib
import inspect
import zlib

import numpy as np
import tensorflow as tf

from scenarios import aggregation, basics
from tf_adasum.compat import tensorflow as tensorflow_compat


def over_both(strategy, compute):
    """Results of a function over either transport: "tensorflow NAME" and "ucx NAME"."""
    ucx = tensorflow_compat.cross_device_ops(strategy.extended).transport
    assert ucx is not None, "the strategy was made with UCX"
    results = {}
    for name, transport in (("tensorflow", None), ("ucx", ucx)):
        with basics.over(strategy, transport):
            results |= {f"{name} {key}": value for key, value in compute().items()}
    return results


def reduce_known_gradients(strategy, **options):
    """Gradients of every dtype and many shapes, in many small buckets."""
    return over_both(strategy, lambda: aggregation.reduce_by_plan(strategy, **options))


def train(strategy, rule, gathers_small_buckets=False, **options):
    """`fit` of a model with an Embedding, whose gradient is sparse, and dense variables."""

    def compute():
        with (
            contextlib.nullcontext()
            if gathers_small_buckets
            else aggregation.without_small_bucket_gathering()
        ):
            return aggregation.train_text_model(strategy, rule, **options)

    return over_both(strategy, compute)


def operations_of_a_step(strategy):
    """How many operations of some types a step of `fit` has, in all its functions."""
    model = basics.compiled(strategy, basics.dense(3, 4, 2), metrics=["mae"])
    rows = np.ones([4 * strategy.num_replicas_in_sync, 3], "float32")
    model.fit(rows, rows[:, :2], batch_size=len(rows), verbose=0)
    function = inspect.getclosurevars(model.train_function).nonlocals["keeping_logs"]
    step = inspect.getclosurevars(function).nonlocals["multi_step_on_iterator"]
    data = tf.data.Dataset.from_tensor_slices((rows, rows[:, :2]))
    data = data.batch(len(rows), drop_remainder=True)  # as the data of arrays
    iterator = iter(strategy.experimental_distribute_dataset(data))
    graph = step.get_concrete_function(iterator).graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    types = collections.Counter(node.op for node in nodes)
    return {
        "collectives": sum(count for name, count in types.items() if "Collective" in name),
        "exchanges": sum(count for name, count in types.items() if "TfAdasumUcx" in name),
        "conditions": types["If"] + types["StatelessIf"],
        "nodes": sum(count for name, count in types.items() if name not in ("Const", "Identity")),
    }


def train_large(strategy):
    """Digests of a variable in several pieces: bytes as many as travel by single copies."""
    replicas = strategy.num_replicas_in_sync
    numbers = np.random.default_rng(0)
    gradients = [
        tf.constant(numbers.standard_normal([replicas, size]).astype("float32"))
        for size in (6_500_001, 3, 250_000)
    ]

    def compute():
        step = basics.reduction(strategy, gradients, strategy.gradient_reduction)
        for _ in range(3):
            combined = step()
        copies = basics.local_results(strategy, combined)
        return {name: zlib.crc32(copy.tobytes()) for name, copy in copies.items()}

    return over_both(strategy, compute)
