"""The rows of each step of `fit`, `evaluate` and `predict`, for every kind of input."""

import functools
import itertools
import warnings

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import Batches, compiled
from scenarios.keras import SeenRows

# The last batch is one row: some replicas have none.
ROWS, BATCH, STEPS, TOO_MANY_STEPS = 33, 8, 2, 7
X = np.arange(ROWS, dtype="float32")[:, None]

# Kinds of input; a `fit` without steps has two epochs, except with those that end for good.
KINDS = [
    "arrays",
    "PyDataset",
    "PyDataset with threads",
    "PyDataset with processes",
    "tensors",
    "from_generator",
    "from_generator, once",
    "generator",
    "endless generator",
    "from function",
]
UNORDERED = ("from function",)  # each worker has rows of its own: no order within a step
ENDLESS, ONCE = ("endless generator",), ("generator", "from_generator, once")
CALLS = ["fit", "validation", "evaluate", "predict"]


BATCHES = [(X[start : start + BATCH],) * 2 for start in range(0, ROWS, BATCH)]


def batches():
    yield from BATCHES


def endless_batches():
    """Yield batches of rows that count on and on."""
    for start in itertools.count(0, BATCH):
        rows = np.arange(start, start + BATCH, dtype="float32")[:, None]
        yield rows, rows


def own_rows(context):
    rows = tf.data.Dataset.from_tensor_slices((X, X))
    rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    return rows.batch(context.get_per_replica_batch_size(BATCH))


def data_of(kind, strategy):
    """Return new data of a kind. Without a strategy "from function" is a dataset of all rows."""
    if kind == "arrays":
        return {"x": X, "y": X, "batch_size": BATCH}
    from_generator = functools.partial(
        tf.data.Dataset.from_generator, output_signature=(tf.TensorSpec([None, 1]),) * 2
    )
    iterator = batches()
    tensors = tf.data.Dataset.from_tensor_slices((X, X)).batch(BATCH)
    make = {
        "PyDataset": lambda: Batches(BATCHES),
        "PyDataset with threads": lambda: Batches(BATCHES, workers=2),
        "PyDataset with processes": lambda: Batches(BATCHES, workers=2, use_multiprocessing=True),
        "tensors": lambda: tensors,
        "from_generator": lambda: from_generator(batches),
        "from_generator, once": lambda: from_generator(lambda: iterator),
        "generator": batches,
        "endless generator": endless_batches,
        "from function": lambda: (
            strategy.distribute_datasets_from_function(own_rows) if strategy else tensors
        ),
    }
    return {"x": make[kind]()}


def call_model(model, call, kind, steps, strategy):
    """Call `fit`, `evaluate` or `predict`, on new data; return what `predict` returns."""
    data = data_of(kind, strategy)
    if call == "predict":
        data.pop("y", None)
    if call in ("predict", "evaluate"):
        return getattr(model, call)(**data, steps=steps, verbose=0)
    options = {"shuffle": False, "verbose": 0}
    if call == "fit":
        epochs = 1 if kind in ONCE and not steps else 2
        return model.fit(**data, epochs=epochs, steps_per_epoch=steps, **options)
    validation = (data["x"], data["y"]) if "y" in data else data["x"]
    options |= {"validation_data": validation, "validation_steps": steps}
    return model.fit(X[:BATCH], X[:BATCH], batch_size=BATCH, **options)


def rows_of_steps(strategy, kinds, calls, steps_per_execution=1, built=False):
    """For every kind, call and number of steps, twice: the rows of each step, on this worker.

    Args:
        strategy: the workers' strategy; None for Keras without one.
        kinds: some of KINDS.
        calls: some of CALLS.
        steps_per_execution: as of `compile`.
        built: whether models have an input shape.

    Returns:
        Dict from "kind/call/steps or all/number of the call/step" to rows.
    """
    found = {}
    for kind, call, steps in itertools.product(kinds, calls, [None, STEPS, TOO_MANY_STEPS]):
        if (kind in ENDLESS and not steps) or (kind in ONCE and steps == TOO_MANY_STEPS):
            continue
        seen = SeenRows()
        layers = [*([keras.layers.Input([1])] if built else []), seen, keras.layers.Dense(1)]
        options = {"steps_per_execution": steps_per_execution}
        model = compiled(strategy, layers.copy, lambda: keras.optimizers.SGD(0.0), **options)
        for number in (1, 2):
            seen.steps.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # data that end, as Keras says
                result = call_model(model, call, kind, steps, strategy)
            case = f"{kind}/{call}/{steps or 'all'}/{number}"
            found |= {f"{case}/{index}": rows for index, rows in enumerate(seen.steps)}
            if call == "predict":
                ones = np.ones([1, 1], "float32")
                found[f"{case}/result"] = np.round(
                    result[:, 0] / float(model.layers[-1](ones)[0, 0])
                )
    return found


def steps_of_calls(results):
    """Return for each call its steps, in order, with the rows of all workers.

    Args:
        results: of `rows_of_steps`, of each worker.

    Returns:
        Dict from "kind/call/steps or all/number of the call" to a list of steps: lists of rows.
    """
    calls = {}
    for key in sorted(set().union(*results)):
        call, _, step = key.rpartition("/")
        parts = [actual[key] for actual in results if key in actual]
        rows = np.concatenate(parts if step != "result" else parts[:1]).astype(int).tolist()
        if key.split("/")[0] in UNORDERED:
            rows.sort()
        if rows:
            calls.setdefault(call, {})[-1 if step == "result" else int(step)] = rows
    return {call: [steps[step] for step in sorted(steps)] for call, steps in calls.items()}
