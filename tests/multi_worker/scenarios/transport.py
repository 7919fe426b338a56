"""What the workers do for tests of the transport: the same over TensorFlow's and over UCX."""

import collections
import contextlib
import inspect
import random
import zlib

import keras
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
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=["mae"])
    rows = np.ones([4 * strategy.num_replicas_in_sync, 3], "float32")
    model.fit(rows, rows[:, :2], batch_size=len(rows), verbose=0)
    function = inspect.getclosurevars(model.train_function).nonlocals["alone"]  # no logs are read
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
    basics.use_rule(strategy, "adasum")
    replicas = strategy.num_replicas_in_sync
    numbers = np.random.default_rng(0)
    gradients = [
        tf.constant(numbers.standard_normal([replicas, size]).astype("float32"))
        for size in (6_500_001, 3, 250_000)
    ]

    def compute():
        step = aggregation.reduction(strategy, gradients, strategy.gradient_reduction)
        for _ in range(3):
            combined = step()
        copies = aggregation.copies_of(strategy, combined)
        return {name: zlib.crc32(copy.tobytes()) for name, copy in copies.items()}

    return over_both(strategy, compute)


def operations(strategy):
    """The types of the collectives in a reduction of gradients, as it is by default."""
    basics.use_rule(strategy, "adasum")
    gradients = [tf.ones([strategy.num_replicas_in_sync, 2_000_000])]
    step = aggregation.reduction(strategy, gradients, strategy.gradient_reduction)
    types = {operation.type for operation in step.get_concrete_function().graph.get_operations()}
    return {"types": sorted(each for each in types if "Collective" in each or "Ucx" in each)}


def random_exchanges(strategy, seeds):
    """Lists of random shapes, dtypes and scales, exchanged at the same time; a case per seed."""
    return over_both(
        strategy,
        lambda: {
            f"{seed} {name}": copy
            for seed in seeds
            for name, copy in random_exchange(strategy, random.Random(seed)).items()
        },
    )


def random_exchange(strategy, draw):
    """Exchange two or three lists in one graph, with a random rule and random options."""
    replicas = strategy.num_replicas_in_sync
    rule = draw.choice(["adasum", "adasum model", "adacons", "adacons variable", "sum", "mean"])
    options = {"wire_dtype": draw.choice([None, "bfloat16", "float16"])}
    if replicas == 4 and rule in ("adasum", "sum", "mean"):
        plans = [{"radix_plan": [4]}, {"radix_plan": [2, 2]}]
        plans += [{"local_reduction_size": 2}] if rule == "adasum" else []
        options |= draw.choice(plans)
    basics.use_rule(strategy, aggregation.RULES[rule](), **options)
    bytes_per_pack = draw.choice([0, 4000, 100_000, 2_000_000])
    lists = [random_gradients(draw, replicas) for _ in range(draw.choice([2, 3]))]
    markers = []
    for number, own in enumerate(lists):
        state = strategy._aggregation_state([f"{number}/{place}" for place in range(len(own))])
        marker = tensorflow_compat.GradientReduction(bytes_per_pack)
        markers.append(marker.for_variables(state, range(len(own))))

    @tf.function(autograph=False)
    def exchange():
        def replica_step():
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group
            return [
                context.all_reduce(
                    "SUM", [tf.gather(each, replica) for each in own], options=marker
                )
                for own, marker in zip(lists, markers, strict=True)
            ]

        return strategy.run(replica_step)

    gathers_small_buckets = draw.random() < 0.3
    with (
        contextlib.nullcontext()
        if gathers_small_buckets
        else aggregation.without_small_bucket_gathering()
    ):
        combined = exchange()
    return {
        f"{number}/{name}": copy
        for number, own in enumerate(combined)
        for name, copy in aggregation.copies_of(strategy, own).items()
    }


def random_gradients(draw, replicas):
    """One to five gradients ``[replicas, ...]``. Some are zero on one replica."""
    numbers = np.random.default_rng(draw.randrange(2**31))
    gradients = []
    for _ in range(draw.randint(1, 5)):
        shape = [int(np.exp(draw.uniform(0, np.log(100_000)))), draw.choice([1, 3])]
        values = numbers.standard_normal(shape) + numbers.standard_normal([replicas, *shape])
        values[draw.randrange(replicas)] *= draw.random() > 0.1
        dtype = draw.choice(["float32", "float64", "bfloat16", "float16"])
        gradients.append(tf.cast(10.0 ** draw.randint(-3, 2) * values, dtype))
    return gradients
