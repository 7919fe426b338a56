"""Every row is trained on once in an epoch, however data is handed over; or a warning says not."""

import numpy as np
import pytest
from scenarios import data as scenarios
from scenarios import rows_by_step

# Cases on every topology, and those that take --slow.
ONCE = [
    "arrays",
    "shuffled tensors AUTO",
    "mapped in any order DATA",
    "tensors in a shard OFF",
    "one AUTO",
    "text",
    "odd AUTO",
    "odd in two parts AUTO",
    "listed even DATA",
    "odd of known length AUTO",
    "PyDataset",
    "PyDataset with threads",
    "PyDataset that shuffles on_epoch_end",
    "generator",
]
ONCE_TOO = [
    "noisy arrays",
    "tensors AUTO",
    "tensors DATA",
    "shuffled tensors DATA",
    "shuffled, cached, repeated",
    "shuffled before cache",
    "shuffled batches",
    "own tensors OFF",
    "one DATA",
    "even AUTO",
    "even FILE",
    "even DATA",
    "listed even AUTO",
    "listed even FILE",
    "listed one AUTO",
    "listed odd AUTO",
    "listed, shuffled AUTO",
    "from function",
    "PyDataset, augmented",
    "PyDataset with processes",
]

# Those whose order is another one in the next epoch.
SHUFFLED = [
    "arrays",
    "shuffled tensors AUTO",
    "shuffled tensors DATA",
    "shuffled, cached, repeated",
    "shuffled batches",
    "listed, shuffled AUTO",
    "PyDataset",
    "PyDataset with threads",
    "PyDataset that shuffles on_epoch_end",
]

# What the warning or error says.
WARNED = {
    "own arrays": "workers' data differ",
    "even OFF": "all workers take the same rows",
    "PyDataset that shuffles at first": "workers' data differ",
}
WARNED_TOO = {
    "own tensors AUTO": "workers' data differ",
    "tensors in a shard AUTO": "is already a `shard`",
    "tensors shuffled by own seeds AUTO": "in different orders",
    "files in other orders AUTO": "workers' data differ",
    "tensors OFF": "all workers take the same rows",
    "PyDataset with its own generator": "workers' data differ",
    "generator of own rows": "workers' data differ",
}
REFUSED = {"one FILE": "Received: 1 file, 2 workers"}

on_workers = pytest.mark.parametrize(
    "group", ["2x1", pytest.param("2x2", marks=pytest.mark.slow)], indirect=True, scope="module"
)


def epochs_of(results, case):
    """The rows of all workers in each epoch; those of a worker follow those of the one before."""
    numbers = [0, 1] if f"{case}/1" in results[0] else [0]
    return [np.concatenate([actual[f"{case}/{epoch}"] for actual in results]) for epoch in numbers]


def says(results, case, what):
    return [str(actual[f"{case}/{what}"]) for actual in results]


@pytest.fixture(scope="module")
def results(group, tmp_path_factory):
    cases = [*ONCE, *WARNED, *REFUSED]
    if group.devices > 1:
        cases += [*ONCE_TOO, *WARNED_TOO]
    folder = str(tmp_path_factory.mktemp("rows"))
    return group.run(scenarios.rows_of_cases, timeout=500, cases=cases, folder=folder)


def of(cases, results):
    """Those of the cases that were run."""
    return [case for case in cases if f"{case}/error" in results[0]]


@on_workers
@pytest.mark.keras3_only("Keras 2 shuffles by itself, and stops where unknown data ends")
@pytest.mark.feature("sharding: every row once in an epoch, under every policy, or a warning")
class TestRows:
    def test_every_row_is_seen_once(self, results):
        problems = {}
        for case in of(ONCE + ONCE_TOO, results):
            said = [*says(results, case, "error"), *says(results, case, "warned")]
            if any("workers" in text for text in said):
                problems[case] = said
            for rows in epochs_of(results, case):
                if sorted(rows) != list(range(scenarios.ROWS)):
                    problems.setdefault(case, []).append(rows.tolist())
        assert not problems

    def test_orders_change_between_epochs(self, results):
        kept = []
        for case in of(SHUFFLED, results):
            first, second = epochs_of(results, case)
            if list(first) in (list(range(scenarios.ROWS)), list(second)):
                kept.append(case)
        assert not kept

    def test_what_makes_rows_get_lost_is_said(self, results):
        expected = {**WARNED, **WARNED_TOO}
        said = {case: says(results, case, "warned") for case in of(expected, results)}
        silent = [c for c, texts in said.items() if not all(expected[c] in t for t in texts)]
        assert not silent

    def test_what_is_refused_is_refused_on_all_workers(self, results):
        for case, text in REFUSED.items():
            assert all(text in each for each in says(results, case, "error")), case

    def test_with_off_every_worker_goes_through_all_rows(self, results):
        for case in of(["even OFF", "tensors OFF"], results):
            for actual in results:
                assert sorted(actual[f"{case}/0"]) == list(range(scenarios.ROWS)), case

    def test_the_users_generators_stay_as_they_are(self, results):
        for case in of(["PyDataset", "PyDataset with threads", "shuffled tensors AUTO"], results):
            assert all(actual[f"{case}/untouched"] for actual in results), case

    def test_the_users_arrays_stay_as_they_are(self, results):
        for actual in results:
            np.testing.assert_array_equal(actual["X"][:, 0], np.arange(scenarios.ROWS))


@pytest.mark.parametrize("group", ["2x1", "1x2"], indirect=True, scope="module")
@pytest.mark.keras3_only("Keras 2 shuffles by itself")
@pytest.mark.feature("`PyDataset`: one order of batches on all workers, reproducible")
def test_orders_are_reproducible(group, tmp_path):
    """From `keras.utils.set_random_seed`."""
    cases = ["PyDataset", "shuffled tensors AUTO"]
    arguments = {"cases": [*cases, *cases], "folder": str(tmp_path)}
    runs = [group.run(scenarios.rows_of_cases, seed=seed, **arguments) for seed in (3, 3, 4, 5)]
    for case in cases:
        first, again, *others = (np.concatenate(epochs_of(run, case)) for run in runs)
        np.testing.assert_array_equal(first, again)
        # Three batches have few orders: one other seed may well give the same.
        assert any(list(first) != list(other) for other in others)
        assert sorted(first) == sorted([*range(scenarios.ROWS)] * 2)


@on_workers
@pytest.mark.keras3_only("Keras 2 stops where unknown data ends")
@pytest.mark.feature("`evaluate` and `predict` of sharded files: every row once and in order")
def test_evaluate_and_predict(group, tmp_path):
    cases = ["even AUTO", "even FILE", "odd AUTO", "one AUTO", "tensors OFF"]
    for actual in group.run(scenarios.predictions, cases=cases, folder=str(tmp_path)):
        for case in cases:
            np.testing.assert_array_equal(actual[f"{case}/rows"], np.arange(scenarios.ROWS))
            # Twice the row, for a target of the row: off by the row. |row| is 11.5 in the mean.
            np.testing.assert_allclose(actual[f"{case}/loss"], 11.5, rtol=1e-6)


# Kinds of input whose rows were lost, calls, and options; `--slow` runs all of them.
BY_STEP = [
    (["generator", "from_generator, once", "PyDataset with threads"], ["fit"], {}),
    (["endless generator"], ["fit"], {"executions": 2}),
    (["generator"], ["evaluate"], {}),
]
BY_STEP_TOO = [
    (rows_by_step.KINDS, rows_by_step.CALLS, {}),
    (rows_by_step.KINDS, ["fit", "evaluate"], {"executions": 2}),
    (rows_by_step.KINDS, ["fit", "evaluate"], {"built": True}),
]


@pytest.mark.keras3_only("Keras 2 stops where unknown data ends")
@pytest.mark.feature("each step has the same rows as Keras without a strategy")
@pytest.mark.parametrize(
    ("group", "cases"),
    [
        ("1x1", BY_STEP),
        ("2x1", BY_STEP),
        pytest.param("2x1", BY_STEP_TOO, marks=pytest.mark.slow),
        pytest.param("4x1", BY_STEP_TOO, marks=pytest.mark.slow),
    ],
    indirect=["group"],
    scope="module",
)
def test_each_step_has_the_rows_of_keras_without_a_strategy(group, cases):
    problems = {}
    for kinds, calls, options in cases:
        arguments = {"kinds": kinds, "calls": calls, **options}
        results = group.run(rows_by_step.rows_of_steps, timeout=1200, **arguments)
        actual, expected = (
            rows_by_step.steps_of_calls(each)
            for each in (results, [rows_by_step.rows_of_steps(None, **arguments)])
        )
        assert len(expected) >= 2 * len(kinds) * len(calls)
        for call in expected:
            if actual.get(call) != expected[call]:
                problems[f"{call} {options}"] = (actual.get(call), expected[call])
    assert not problems
