"""The frame of the experiments, and each of them at a tiny size, from its runs to its figures."""

import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.keras3_only("the experiments are played on TensorFlow 2.21"),
]

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def room(monkeypatch):
    """Import a module of the experiments by its name."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"experiments.{name}")


# ---- results ------------------------------------------------------------------------------------


def test_results_are_there_again_and_a_line_that_was_cut_off_is_not(room, tmp_path):
    path = tmp_path / "folder" / "runs.jsonl"
    results = room("results").Results(path)
    results.append({"rule": "mean", "rate": 0.1}, {"loss": 1.5}, 2.0)
    results.append({"rule": "mean", "rate": 0.2}, {"loss": 2.5}, 3.0)
    with path.open("a") as file:
        file.write('{"case": {"rule"')
    again = room("results").Results(path)
    assert len(again) == 2 and again.seconds == 5.0
    assert again[{"rate": 0.2, "rule": "mean"}] == {"loss": 2.5}
    assert {"rule": "mean", "rate": 0.4} not in again
    again.append({"rule": "mean", "rate": 0.4}, {"loss": 0.5}, 1.0)
    assert [json.loads(line)["case"]["rate"] for line in path.read_text().splitlines()] == [
        0.1,
        0.2,
        0.4,
    ]


# ---- the search ---------------------------------------------------------------------------------


class Valley:
    """An experiment whose accuracy is best at a known rate for each rule."""

    name = "valley"

    def __init__(self, search, best):
        self.search, self.best, self.played = search, best, []
        self.settings = [{"rule": rule} for rule in best]

    def grid(self, results):
        return self.search.grid(results, self.settings, lambda result: (result["accuracy"],))

    def plan(self, results):
        grid = self.grid(results)
        if not grid.is_complete:
            return grid.cases()
        finals = [grid.runs(own, grid.best(results, own), "test") for own in self.settings]
        return grid.cases() + list(itertools.chain(*finals))

    def play(self, case):
        self.played.append(case)
        return {"accuracy": -abs(np.log2(case["rate"]) - self.best[case["rule"]])}


class Silent:
    def show(self, *numbers):
        pass


def play(room, tmp_path, best, **options):
    search = room("search").Search(1.0, (-1, 0, 1), seeds=(7, 8), final_seeds=(1, 2), **options)
    valley = Valley(search, best)
    results = room("results").Results(tmp_path / "runs.jsonl")
    room("running").run(valley, results, Silent())
    return valley, valley.grid(results), results


def test_the_grid_grows_for_all_rules_until_no_edge_wins(room, tmp_path):
    valley, grid, results = play(room, tmp_path, {"mean": 3, "adasum": -2})
    assert list(grid.exponents) == [-3, -2, -1, 0, 1, 2, 3, 4] and not grid.limited
    assert [grid.best(results, own) for own in grid.settings] == [3, -2]
    searched = [case for case in valley.played if case["split"] == "validation"]
    tried = {
        rule: sorted(case["rate"] for case in searched if case["rule"] == rule)
        for rule in valley.best
    }
    assert tried["mean"] == tried["adasum"], "the same budget"
    finals = [(case["rule"], case["rate"]) for case in valley.played if case["split"] == "test"]
    assert sorted(finals) == [("adasum", 0.25)] * 2 + [("mean", 8.0)] * 2
    assert {case["seed"] for case in searched} == {7, 8}


def test_a_grid_that_may_not_grow_names_the_rule_whose_edge_wins(room, tmp_path):
    _, grid, _ = play(room, tmp_path, {"mean": 9, "adasum": 0}, widenings=2)
    assert list(grid.exponents) == [-1, 0, 1, 2, 3]
    assert grid.limited == [{"rule": "mean"}]


def test_a_search_that_was_killed_ends_with_the_same_runs(room, tmp_path):
    whole, _, _ = play(room, tmp_path / "whole", {"mean": 2})
    path = tmp_path / "killed" / "runs.jsonl"
    path.parent.mkdir()
    lines = (tmp_path / "whole" / "runs.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:20])
    rest, _, _ = play(room, path.parent, {"mean": 2})
    assert len(rest.played) == len(whole.played) - 5
    killed, whole = (
        [json.loads(line)["case"] for line in (tmp_path / name / "runs.jsonl").open()]
        for name in ("killed", "whole")
    )
    assert killed == whole


# ---- numbers ------------------------------------------------------------------------------------


def test_the_paired_test_and_holms_correction(room):
    comparison = room("comparison")
    seeds = np.arange(10)
    # All ten pairs in one direction: 2 / 2^10.
    assert comparison.paired_p(seeds + 1.0 + seeds / 10, seeds) == pytest.approx(2 / 2**10)
    assert comparison.paired_p(seeds, seeds) == 1.0
    assert comparison.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert comparison.with_range([0.5, 0.25, 1.0], 2) == "0.50 (0.25 to 1.00)"
    assert comparison.first_reaching([2, 4, 6], [0.1, None, 0.7], 0.5) == 6
    assert comparison.first_reaching([2, 4], [0.1, 0.2], 0.5) is None


def test_warm_up_and_decay(room):
    schedule = room("schedules").warmup_and_decay(2.0, 10, 0.2)
    np.testing.assert_allclose(schedule[:3], [1.0, 2.0, 2.0])
    np.testing.assert_allclose(schedule[-1], 2.0 / 8)
    assert room("schedules").warmup_and_decay(2.0, 1, 0.1) == [2.0]


def test_every_epoch_sees_each_row_at_most_once(room):
    order = room("simulation.training").orders(rows=11, steps=7, global_batch=2, seed=3)
    assert order.shape == (7, 2)
    assert len(set(order[:5].ravel())) == 10
    again, other = (
        room("simulation.training").orders(rows=11, steps=7, global_batch=2, seed=seed)
        for seed in (3, 4)
    )
    assert (order == again).all() and (order != other).any()


# ---- the experiments ----------------------------------------------------------------------------


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("residual", "transformer")]


@pytest.mark.parametrize("name", ["cnn", "orthogonality", *SLOW])
def test_smoke(room, name):
    absent = room("__main__").missing(room("__main__").experiment_of(name).small())
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    ended = subprocess.run(
        [sys.executable, "-m", "experiments", "run", name, "--smoke"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "| claim | source | at our size |" in ended.stdout
    assert ".svg" in ended.stdout.splitlines()[-1]


def test_the_page_has_a_place_for_every_experiment(room):
    page, names = room("page"), room("__main__").NAMES
    parts = {f"{name}{part}": "new" for name in names for part in ("", " verdicts")}
    assert page.rewritten(page.PAGE.read_text(), parts).count("\nnew\n") == 2 * len(names)
    with pytest.raises(ValueError, match=r"begin: other .* Received: 0"):
        page.rewritten(page.PAGE.read_text(), {"other": ""})
