"""Every row is trained on once in an epoch, however data is handed over; or a warning says not."""

import numpy as np
import pytest
from scenarios import data as scenarios
from scenarios import on, rows_by_step
from support import keras_versions

ONCE = [
    "tensors in a shard OFF",
    "more rows on worker 0 OFF",
    "mapped in any order DATA",
    "one AUTO",
    "text",
    "even FILE",
    "odd AUTO",
    "odd in two parts AUTO",
    "listed even DATA",
    "odd of known length AUTO",
]
# The order is another one in the next epoch.
SHUFFLED = [
    "arrays",
    "shuffled tensors AUTO",
    "shuffled, cached, repeated",
    "listed, shuffled AUTO",
    "PyDataset",
    "PyDataset with threads",
    "PyDataset that shuffles on_epoch_end",
]
WARNED = {
    "own arrays": "workers' data differ",
    "PyDataset that shuffles at first": "workers' data differ",
    "even OFF": "all workers take the same rows",
    "tensors in a shard AUTO": "is already a part of the data",
    "tensors shuffled by own seeds AUTO": "in different orders",
}

on_workers = pytest.mark.parametrize(
    "group", ["2x1", pytest.param("2x2", marks=pytest.mark.slow)], indirect=True
)


def epochs_of(results, case):
    """The rows of all workers in each epoch; those of a worker follow those of the one before."""
    numbers = [0, 1] if f"{case}/1" in results[0] else [0]
    return [np.concatenate([actual[f"{case}/{epoch}"] for actual in results]) for epoch in numbers]


@on_workers
@pytest.mark.keras3_only("Keras 2 shuffles by itself, and stops where unknown data ends")
@pytest.mark.slow
def test_every_row_is_seen_once_or_a_warning_names_the_reason(group, tmp_path):
    cases = [*ONCE, *SHUFFLED, *WARNED]
    arguments = {"cases": cases, "folder": str(tmp_path)}
    results = group.run(scenarios.rows_of_cases, timeout=500, **arguments)
    rows = list(range(scenarios.ROWS))
    problems = {}
    for actual in results:
        for case in cases:
            texts = str(actual[f"{case}/warned"]), str(actual[f"{case}/error"])
            if WARNED.get(case, "") not in texts[0]:
                problems[case] = texts
            if case in ONCE + SHUFFLED and any("workers" in text for text in texts):
                problems[case] = texts
        assert sorted(actual["even OFF/0"]) == rows, "every worker goes through all rows"
        np.testing.assert_array_equal(actual["X"][:, 0], rows, "the user's array stays")
    for case in ONCE + SHUFFLED:
        epochs = [each.tolist() for each in epochs_of(results, case)]
        is_kept = case in SHUFFLED and epochs[0] in (rows, epochs[1])
        if is_kept or any(sorted(each) != rows for each in epochs):
            problems[case] = epochs
    assert not problems


@on("1x2", "2x2")
@pytest.mark.parametrize("seeds", ["none", "same", "different"])
def test_arrays_are_shuffled_by_one_seed(group, tmp_path, seeds):
    """With a seed of the user's Keras repeats a permutation; Keras 2 repeats those of a `fit`.

    So do we with different seeds, which are set before each `fit`.
    """
    fits = ["arrays", "arrays again"]
    results = group.run(scenarios.rows_of_cases, cases=fits, seeds=seeds, folder=str(tmp_path))
    rows = list(range(scenarios.ROWS))
    epochs = [each.tolist() for fit in fits for each in epochs_of(results, fit)]
    assert all(sorted(each) == rows != each for each in epochs)
    is_ours = group.workers > 1 and seeds == "different"
    repeated = 2 if keras_versions.IS_KERAS_2 or is_ours else 1
    assert len(set(map(tuple, epochs))) == (4 if seeds == "none" else repeated)


@on_workers
@pytest.mark.keras3_only("Keras 2 stops where unknown data ends")
def test_evaluate_and_predict_and_a_dataset_that_replaces_another(group, tmp_path):
    """With the policy OFF, a step takes only some rows of each worker's batch."""
    case, predicted = scenarios.REPLACED, ["even AUTO", "even FILE", "odd AUTO", "tensors OFF"]
    arguments = {"cases": [case], "predicted": predicted, "folder": str(tmp_path)}
    results, rows = group.run(scenarios.rows_of_cases, **arguments), list(range(scenarios.ROWS))
    for epoch in epochs_of(results, case):
        assert sorted(epoch) == rows
    for actual in results:
        for case in predicted:
            np.testing.assert_array_equal(actual[f"{case}/predicted"], rows)
            # Twice the row, for a target of the row: off by the row. |row| is 11.5 in the mean.
            np.testing.assert_allclose(actual[f"{case}/loss"], 11.5, rtol=1e-6)


# Kinds of input whose rows were lost, calls, and options; the slow cases are all of them.
BY_STEP = [
    (["generator", "from_generator, once", "PyDataset with threads", "tensors"], ["fit"], {}),
    (["endless generator"], ["fit"], {"steps_per_execution": 2}),
    (["generator"], ["evaluate"], {}),
]
ALL_BY_STEP = [
    (rows_by_step.KINDS, rows_by_step.CALLS, {}),
    (rows_by_step.KINDS, ["fit", "evaluate"], {"steps_per_execution": 2}),
    (rows_by_step.KINDS, ["fit", "evaluate"], {"built": True}),
]


@pytest.mark.keras3_only("Keras 2 stops where unknown data ends")
@pytest.mark.parametrize(
    ("group", "cases"),
    [
        ("1x1", BY_STEP),
        ("2x1", BY_STEP),
        pytest.param("4x1", ALL_BY_STEP, marks=pytest.mark.slow),
    ],
    indirect=["group"],
)
@pytest.mark.slow
def test_each_step_has_the_rows_of_keras_without_a_strategy(group, cases):
    for kinds, calls, options in cases:
        arguments = {"kinds": kinds, "calls": calls, **options}
        results = group.run(rows_by_step.rows_of_steps, timeout=1200, **arguments)
        alone = [rows_by_step.rows_of_steps(None, **arguments)]
        expected = rows_by_step.steps_of_calls(alone)
        assert len(expected) >= 2 * len(kinds) * len(calls)
        assert rows_by_step.steps_of_calls(results) == expected, options
