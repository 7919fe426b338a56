"""The frame of the experiments, and each of them at a tiny size, from its runs to its figures."""

import itertools
import json
import sys
from unittest import mock

import numpy as np
import pytest

pytestmark = [
    pytest.mark.version_independent,
    pytest.mark.keras3_only("the experiments run on TensorFlow 2.21"),
]


class Valley:
    """An experiment whose accuracy is best at a known rate for each rule."""

    name = "valley"

    def __init__(self, search, best):
        self.search, self.best, self.ran = search, best, []
        self.settings = [{"rule": rule} for rule in best]

    def grid(self, results):
        return self.search.grid(results, self.settings, lambda result: (result["accuracy"],))

    def plan(self, results):
        grid = self.grid(results)
        if not grid.is_complete:
            return grid.cases()
        finals = [grid.runs(own, grid.best(results, own), "test") for own in self.settings]
        return grid.cases() + list(itertools.chain(*finals))

    def run(self, case):
        self.ran.append(case)
        return {"accuracy": -abs(np.log2(case["rate"]) - self.best[case["rule"]])}


def run_all(load, tmp_path, best, **options):
    search = load("experiments.search").Search(
        1.0, (-1, 0, 1), seeds=(7, 8), final_seeds=(1, 2), **options
    )
    valley = Valley(search, best)
    results = load("experiments.results").Results(tmp_path / "runs.jsonl")
    load("experiments.running").run(valley, results, progress=mock.Mock())
    return valley, valley.grid(results), results


def test_the_grid_grows_for_all_rules_until_no_edge_wins(load, tmp_path):
    valley, grid, results = run_all(load, tmp_path, {"mean": 3, "adasum": -2})
    assert list(grid.exponents) == [-3, -2, -1, 0, 1, 2, 3, 4] and not grid.limited
    assert [grid.best(results, own) for own in grid.settings] == [3, -2]
    searched = [case for case in valley.ran if case["split"] == "validation"]
    mean, adasum = (
        sorted(case["rate"] for case in searched if case["rule"] == rule) for rule in valley.best
    )
    assert mean == adasum, "the same budget"
    finals = [(case["rule"], case["rate"]) for case in valley.ran if case["split"] == "test"]
    assert sorted(finals) == [("adasum", 0.25)] * 2 + [("mean", 8.0)] * 2
    assert {case["seed"] for case in searched} == {7, 8}


def test_a_grid_that_may_not_grow_names_the_rule_whose_edge_wins(load, tmp_path):
    _, grid, _ = run_all(load, tmp_path, {"mean": 9, "adasum": 0}, widenings=2)
    assert list(grid.exponents) == [-1, 0, 1, 2, 3]
    assert grid.limited == [{"rule": "mean"}]


def test_a_search_that_was_killed_ends_with_the_same_runs(load, tmp_path):
    whole, _, _ = run_all(load, tmp_path / "whole", {"mean": 2})
    path = tmp_path / "killed" / "runs.jsonl"
    path.parent.mkdir()
    lines = (tmp_path / "whole" / "runs.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:20])
    rest, _, _ = run_all(load, path.parent, {"mean": 2})
    assert len(rest.ran) == len(whole.ran) - 5
    killed, whole = (
        [json.loads(line)["case"] for line in (tmp_path / name / "runs.jsonl").open()]
        for name in ("killed", "whole")
    )
    assert killed == whole


def test_the_paired_test_and_holms_correction(load):
    comparison = load("experiments.comparison")
    seeds = np.arange(10)
    # All ten pairs in one direction: 2 / 2^10.
    assert comparison.paired_p(seeds + 1.0 + seeds / 10, seeds) == pytest.approx(2 / 2**10)
    assert comparison.paired_p(seeds, seeds) == 1.0
    assert comparison.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert comparison.with_range([0.5, 0.25, 1.0], 2) == "0.50 (0.25 to 1.00)"
    assert comparison.first_reaching([2, 4, 6], [0.1, None, 0.7], 0.5) == 6
    assert comparison.first_reaching([2, 4], [0.1, 0.2], 0.5) is None


def test_replicas_with_different_weights_have_their_own_gradients(load):
    tf = pytest.importorskip("tensorflow")
    model = load("experiments.models.cnn").CNN()
    training = load("experiments.simulation.training").Training
    several, single = (training(model, "sgd", "mean", n, 4) for n in (3, 1))
    random = np.random.default_rng(0)
    rows = tf.stack([several.initial(seed)[0] for seed in range(3)])
    x = tf.constant(random.normal(size=[12, 8, 8, 1]), tf.float32)
    y = tf.constant(random.integers(0, 10, 12), tf.int32)
    found = several.gradients_at(rows, x, y)
    for i in range(3):
        own = single.gradients(rows[i], x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])
        np.testing.assert_allclose(found[i], own[0], rtol=0, atol=1e-6)
    assert np.abs(found[1] - several.gradients(rows[0], x, y)[1]).max() > 0.01


def test_the_auc_is_the_share_of_pairs_in_the_right_order(load):
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 60)
    logits = random.standard_normal([60, 2]).astype("float32")
    scores = logits[:, 1] - logits[:, 0]
    pairs = scores[y == 1][:, None] > scores[y == 0]
    found = load("experiments.models.clicks").Clicks(4, (3,)).score(logits, y)
    assert float(found) == pytest.approx(pairs.mean(), abs=1e-12)


SLOW = ("cnn", "local_steps", "jobs", "word2vec", "residual", "transformer", "adascale", "adacons")


@pytest.mark.parametrize(
    "name",
    ["orthogonality", "sequential", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_smoke(load, name, monkeypatch, capsys):
    program = load("experiments.__main__")
    if absent := program.missing(program.experiment_of(name).small()):
        pytest.skip(f"not installed: {', '.join(absent)}")
    monkeypatch.setattr(program, "quiet", lambda: None)  # TensorFlow has its threads already
    monkeypatch.setattr(sys, "argv", ["experiments", "run", name, "--smoke"])
    program.main()
    printed = capsys.readouterr().out
    assert "> **Claim:** " in printed and "| setup | verdict |" in printed
    assert ".svg" in printed.splitlines()[-1] or name == "jobs"
