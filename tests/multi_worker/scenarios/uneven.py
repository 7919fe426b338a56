"""Workers whose datasets differ in length."""

import time
import warnings

import keras
import tensorflow as tf

from scenarios.basics import Batches, compiled, dense, message_of, random_data

BATCH = 4


def dataset_of(batches, unknown=False):
    """A dataset of so many batches of known rows; of -1: without end."""
    x, y = random_data(BATCH * abs(batches), seed=abs(batches))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    if batches < 0:
        return dataset.repeat()
    return dataset.filter(lambda *rows: True) if unknown else dataset


def model_of(strategy, rate=0.05, steps_per_execution=1):
    options = {"metrics": ["mae"], "steps_per_execution": steps_per_execution}
    return compiled(strategy, dense(6, 1), lambda: keras.optimizers.SGD(rate), **options)


def from_function(strategy, batches, unknown=False, steps=None):
    """Two epochs; returns the logs.

    Args:
        strategy: the workers' strategy.
        batches: of each worker.
        unknown: whether the datasets do not know how many.
        steps: of an epoch; None as many as there are.
    """
    own = batches[strategy.rank]
    dataset = strategy.distribute_datasets_from_function(lambda _: dataset_of(own, unknown))
    model = model_of(strategy, rate=0.0)
    return model.fit(dataset, epochs=2, steps_per_epoch=steps, verbose=0).history


def rows_of_loop(strategy, batches):
    """The rows of each step of two passes of a custom loop."""
    own = batches[strategy.rank]
    dataset = strategy.distribute_datasets_from_function(lambda _: dataset_of(own))
    local = strategy.experimental_local_results
    return {"rows": [len(local(x)[0]) for _ in range(2) for x, _ in dataset]}


def infinite_on_one(strategy):
    """The error of datasets from a function of which one is infinite."""
    batches = -3 if strategy.rank else 3
    distribute = strategy.distribute_datasets_from_function
    return {"message": message_of(lambda: distribute(lambda _: dataset_of(batches)))}


def data_of(kind, batches):
    """Return the arguments of `fit` for so many batches of a kind of data."""
    dataset = dataset_of(batches, unknown=kind == "unknown cardinality")
    own = list(dataset.as_numpy_iterator())
    match kind:
        case "arrays":
            x, y = (part[: BATCH * batches] for part in random_data(BATCH * max(batches, 1)))
            return {"x": x, "y": y, "batch_size": BATCH}
        case "generator":
            return {"x": (batch for batch in own)}
        case "PyDataset":
            return {"x": Batches(own)}
    return {"x": dataset}


def refused(strategy, cases):
    """`fit`, `evaluate` and `predict` of data that are shorter on some workers.

    Args:
        strategy: the workers' strategy.
        cases: for each the name of a call, a kind of data, the batches of each worker,
            `steps_per_epoch`, and `steps_per_execution`.

    Returns:
        For each case the seconds, and the type and text of the error.
    """
    found = {}
    for index, (call, kind, batches, steps, steps_per_execution) in enumerate(cases):
        model = model_of(strategy, steps_per_execution=steps_per_execution)
        data = data_of(kind, batches[strategy.rank])
        if call == "predict":
            data.pop("y", None)
        options = {"steps_per_epoch" if call == "fit" else "steps": steps, "verbose": 0}
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # data that differ
            text = message_of(lambda: getattr(model, call)(**data, **options))  # noqa: B023
        found |= {f"seconds{index}": time.monotonic() - begun, f"text{index}": text}
    return found
