"""The frame of the experiments, and each of them at a tiny size, from its runs to its figures."""

import functools
import importlib
import itertools
import json
import os
import pathlib
import sys

import numpy as np
import pytest
from support.launching import output_of

pytestmark = [
    pytest.mark.version_independent,
    pytest.mark.keras3_only("the experiments run on TensorFlow 2.21"),
]

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture
def module(monkeypatch):
    """Import a module of the experiments by its name."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"experiments.{name}")


def test_results_are_there_again_and_a_line_that_was_cut_off_is_not(module, tmp_path):
    path = tmp_path / "folder" / "runs.jsonl"
    results = module("results").Results(path)
    results.append({"rule": "mean", "rate": 0.1}, {"loss": 1.5}, 2.0)
    results.append({"rule": "mean", "rate": 0.2}, {"loss": 2.5}, 3.0)
    with path.open("a") as file:
        file.write('{"case": {"rule"')
    again = module("results").Results(path)
    assert len(again) == 2 and again.seconds == 5.0
    assert again[{"rate": 0.2, "rule": "mean"}] == {"loss": 2.5}
    assert {"rule": "mean", "rate": 0.4} not in again
    again.append({"rule": "mean", "rate": 0.4}, {"loss": 0.5}, 1.0)
    rates = [json.loads(line)["case"]["rate"] for line in path.read_text().splitlines()]
    assert rates == [0.1, 0.2, 0.4]


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


class Silent:
    def show(self, *numbers):
        pass


def run_all(module, tmp_path, best, **options):
    search = module("search").Search(1.0, (-1, 0, 1), seeds=(7, 8), final_seeds=(1, 2), **options)
    valley = Valley(search, best)
    results = module("results").Results(tmp_path / "runs.jsonl")
    module("running").run(valley, results, Silent())
    return valley, valley.grid(results), results


def test_the_grid_grows_for_all_rules_until_no_edge_wins(module, tmp_path):
    valley, grid, results = run_all(module, tmp_path, {"mean": 3, "adasum": -2})
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


def test_a_grid_that_may_not_grow_names_the_rule_whose_edge_wins(module, tmp_path):
    _, grid, _ = run_all(module, tmp_path, {"mean": 9, "adasum": 0}, widenings=2)
    assert list(grid.exponents) == [-1, 0, 1, 2, 3]
    assert grid.limited == [{"rule": "mean"}]


def test_a_search_that_was_killed_ends_with_the_same_runs(module, tmp_path):
    whole, _, _ = run_all(module, tmp_path / "whole", {"mean": 2})
    path = tmp_path / "killed" / "runs.jsonl"
    path.parent.mkdir()
    lines = (tmp_path / "whole" / "runs.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:20])
    rest, _, _ = run_all(module, path.parent, {"mean": 2})
    assert len(rest.ran) == len(whole.ran) - 5
    killed, whole = (
        [json.loads(line)["case"] for line in (tmp_path / name / "runs.jsonl").open()]
        for name in ("killed", "whole")
    )
    assert killed == whole


def test_the_paired_test_and_holms_correction(module):
    comparison = module("comparison")
    seeds = np.arange(10)
    # All ten pairs in one direction: 2 / 2^10.
    assert comparison.paired_p(seeds + 1.0 + seeds / 10, seeds) == pytest.approx(2 / 2**10)
    assert comparison.paired_p(seeds, seeds) == 1.0
    assert comparison.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert comparison.with_range([0.5, 0.25, 1.0], 2) == "0.50 (0.25 to 1.00)"
    assert comparison.first_reaching([2, 4, 6], [0.1, None, 0.7], 0.5) == 6
    assert comparison.first_reaching([2, 4], [0.1, 0.2], 0.5) is None


def test_warm_up_and_decay(module):
    warmup_and_decay = module("schedules").warmup_and_decay
    schedule = warmup_and_decay(2.0, 10, 0.2)
    np.testing.assert_allclose([*schedule[:3], schedule[-1]], [1.0, 2.0, 2.0, 2.0 / 8])
    assert warmup_and_decay(2.0, 1, 0.1) == [2.0]


def test_ranks_of_neighbours(module):
    """By angles: 0°, 10°, 90°, 100° and a long vector at 15°."""
    angles, lengths = np.radians([0, 10, 90, 100, 15]), np.array([1, 1, 1, 1, 50])
    table = (lengths * [np.cos(angles), np.sin(angles)]).T
    ranks = module("word2vec.experiment").ranks
    # Of 10° the nearest is 15°.
    expected = [[1, 2], [2, 2], [4, 4], [1, 1]]
    assert ranks(table, np.array([[0, 1], [0, 4], [0, 3], [2, 3]])).tolist() == expected
    table[0, 0] = np.nan
    assert ranks(table, np.array([[0, 1]])).tolist() == [[4, 4]]


def test_linear_scaling_of_an_elastic_training(module):
    """T = 80: 40 steps at S = 2 are 20, 40 at S = 4 are 10; the rate falls at 60."""
    scaled = module("adascale.experiment").scaled
    (alone,), (stretched,) = scaled(0.5, 80, (4,)), scaled(0.5, 80, (4,), 40)
    assert (len(alone), len(stretched)) == (20, 40)
    first, second = scaled(0.5, 80, (2, 4))
    assert len(first) == 20
    np.testing.assert_allclose(first[:3], [0.5, 0.5 * (1 + 1 / (30 * 5 / 90)), 1.0], rtol=1e-6)
    # Steps 40, 44, … 60 and 64, … 76 of the schedule.
    np.testing.assert_allclose(second, [2.0] * 6 + [0.2] * 4, rtol=1e-6)


def test_every_epoch_sees_each_row_at_most_once(module):
    orders = functools.partial(
        module("simulation.training_loop").orders, rows=11, steps=7, global_batch=2
    )
    order = orders(seed=3)
    assert order.shape == (7, 2) and len(set(order[:5].ravel())) == 10
    assert (order == orders(seed=3)).all() and (order != orders(seed=4)).any()


def test_the_auc_is_the_share_of_pairs_in_the_right_order(module):
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 60)
    logits = random.standard_normal([60, 2]).astype("float32")
    scores = logits[:, 1] - logits[:, 0]
    pairs = scores[y == 1][:, None] > scores[y == 0]
    found = module("models.clicks").Clicks(4, (3,)).score(logits, y)
    assert float(found) == pytest.approx(pairs.mean(), abs=1e-12)


def test_the_regressions_verdict_is_of_its_ranges(module):
    known, search = module("adacons.regression").verdicts()
    assert (known.word, known.training) == ("confirmed", "step: to the optimum")
    assert known.numbers["loss on 8 workers"] == "AdaCons 2.66e-05, mean 23"
    assert (search.word, search.training) == ("unconfirmed", "step: line search on the loss")


@pytest.fixture
def of_cnn(module, tmp_path):
    """A function of the accuracy of a case: what an experiment like the CNN's on digits finds."""
    search = module("search").Search(0.02, (0,), widenings=0, seeds=(100,), final_seeds=range(9))
    cnn = module("cnn.experiment")
    own = cnn.CNNExperiment(cnn.PROBLEMS[:1], (4, 16, 32), search)
    results = module("results").Results(tmp_path / "runs.jsonl")

    def found(accuracy):
        own.run = lambda case: {
            "accuracy": accuracy(case) + case["seed"] / 1000,
            "loss": 1.0,
            "steps": [1],
            "accuracies": [accuracy(case)],
        }
        module("running").run(own, results, Silent())
        return module("classification.tables").ProblemResults(
            own, results, own.problems[0], (4, 16, 32)
        )

    return found


def test_verdicts_on_tuned_rates_are_on_the_form_that_the_validation_prefers(module, of_cnn):
    known = {
        "validation": {"adasum": 0.9, "adasum of steps": 0.8, "mean": 0.7},
        "test": {"adasum": 0.6, "adasum of steps": 0.9, "mean": 0.7},
    }
    found = of_cnn(lambda case: known[case["split"]].get(case["rule"], 0.95))
    assert found.chosen(16) == "adasum"
    (verdict,) = module("classification.verdicts").tuned([found], 16)
    assert verdict.word == "refuted"
    assert verdict.numbers["on 16"] == "Adasum 0.604, mean 0.704 (worse)"


@pytest.mark.parametrize(
    ("lasting", "word"),
    [
        ({"mean": 4, "adasum": 32}, "confirmed"),
        ({"mean": 4, "adasum": 16}, "partly"),
        ({"mean": 16, "adasum": 32}, "partly"),
        ({"mean": 16, "adasum": 16}, "unconfirmed"),
    ],
)
def test_the_verdict_at_one_replicas_rate_is_on_16_and_32(module, of_cnn, lasting, word):
    found = of_cnn(lambda case: 0.95 if case["replicas"] <= lasting.get(case["rule"], 1) else 0.5)
    (verdict,) = module("cnn.experiment").same([found])
    assert verdict.word == word and verdict.training.startswith("[digits, ")


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("residual.experiment.word_of", (None, 7.5), "confirmed"),
        ("residual.experiment.word_of", (5.0, None), "refuted"),
        ("residual.experiment.word_of", (None, None), "unconfirmed"),
        ("residual.experiment.word_of", (9.0, 7.5), "unconfirmed"),
        ("transformer.experiment.word_of", ([[0.2] * 3, [0.09] * 3], 0.01), "confirmed"),
        ("transformer.experiment.word_of", ([[0.2] * 3, [0.15] * 3], 0.01), "partly"),
        ("transformer.experiment.word_of", ([[0.2] * 3, [0.3] * 3], 0.01), "refuted"),
        ("transformer.experiment.word_of", ([[0.2] * 3, [0.09] * 3], 0.06), "unconfirmed"),
        ("orthogonality.experiment.start", ([[0.27], [0.14]], [4, 8]), "confirmed"),
        ("orthogonality.experiment.start", ([[0.27], [0.5]], [4, 8]), "partly"),
        ("orthogonality.experiment.start", ([[0.27], [0.6]], [4, 8]), "unconfirmed"),
    ],
)
def test_the_verdict_on_numbers(module, name, arguments, word):
    """On epochs to a target, on losses of the mean and Adasum, on orthogonality from 1/N to 1."""
    owner, _, function = name.rpartition(".")
    assert getattr(module(owner), function)(*arguments) == word


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("word2vec", "residual", "transformer", "adascale", "adacons", "ablations")
]


@pytest.mark.parametrize("name", ["cnn", "orthogonality", "sequential", *SLOW])
def test_smoke(module, name):
    absent = module("__main__").missing(module("__main__").experiment_of(name).small())
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    printed = output_of(
        *[sys.executable, "-m", "experiments", "run", name, "--smoke"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        stderr=None,
        timeout=300,
    )
    assert "> **Claim:** " in printed and "| training | verdict |" in printed
    assert ".svg" in printed.splitlines()[-1]


def test_time_to_accuracy_is_steps_times_step_times(module, tmp_path, monkeypatch):
    """Invented steps and step times: 100 steps of 40 ms are 4 s."""
    own = module("time_to_accuracy.experiment")
    steps = [(1, "one replica", 500), (4, "mean", 200), (4, "adasum", 100)]
    steps += [(4, "adasum of steps", None)]
    rows = [own.Row("cnn", "CNN", "accuracy 0.9", *each) for each in steps]
    monkeypatch.setattr(own, "of_cnn", lambda: rows)
    monkeypatch.setattr(own, "of_word2vec", lambda: [])
    monkeypatch.setattr(own, "of_transformer", lambda: [])
    times = [("mean", "1x1", 0.001), ("mean", "2x2", 0.03), ("adasum", "2x2", 0.04)]
    times += [("mean", "4x1", 0.05), ("adasum of steps", "4x1", 0.07)]
    names = ("rule", "topology", "seconds")
    lines = [{"task": "cnn", **dict(zip(names, each, strict=True))} for each in times]
    path = tmp_path / "steps.json"
    path.write_text(json.dumps({"machine": "invented", "commit": "none", "steps": lines}))
    report = own.TimeToAccuracy(path).report(None, None)
    for line in (
        "| 1 | one replica | 500 | 0.5 s (1.0 ms) |  |  |",
        "| 4 | mean | 200 |  | 6.0 s (30.0 ms) | 10.0 s (50.0 ms) |",
        "| 4 | Adasum | 100 |  | 4.0 s (40.0 ms) |  |",
        "| 4 | DeltaAdasum | – |  |  | – (70.0 ms) |",
    ):
        assert f"| CNN | accuracy 0.9 {line}" in report.body
    ((verdict,),) = (claim.verdicts for claim in report.claims)
    assert (verdict.word, verdict.training) == ("faster", "CNN, N = 4")
    assert verdict.numbers == {"of the mean's time on 2 workers": "Adasum 0.67"}
    (claim,) = own.TimeToAccuracy(tmp_path / "absent.json").report(None, None).claims
    assert not claim.verdicts


def test_the_latency_is_read_from_the_report(module):
    own = module("latency.experiment")
    rows = [
        ("workers", "gradients", "way", "kind", "kind / adasum"),
        ("---", "---", "---", "---", "---"),
        ("2", "1 MB", "shared memory", "sum", "0.50 (0.10..2.00)"),
        ("2", "1 MB", "shared memory", "adasum", "1.00"),
        ("2", "1 MB", "shared memory", "adasum; ucx", "0.25"),
        ("4", "1 MB", "shared memory", "sum", "0.80"),
        ("4", "1 MB", "shared memory", "adasum", "0.88"),
        ("2", "1 MB", "TCP", "adasum", "0.74"),
    ]
    found = own.ratios("\n".join(f"| {' | '.join(row)} |" for row in rows))
    expected = {("adasum", "2"): 2.0, ("adasum; ucx", "2"): 0.5, ("adasum", "4"): 1.1}
    assert found == pytest.approx({(*key, "1 MB"): ratio for key, ratio in expected.items()})
    verdict = own.verdict(found, "adasum")
    assert verdict.word == "partly" and verdict.numbers["at most 1.15"] == "1 of 2"
    newest = own.ratios(max(own.REPORTS.glob("*-exchange_transport.md")).read_text())
    assert len(newest) == 2 * 14 and len(set(newest.values())) > 14  # two ways, two counts, sizes


def test_steps_to_a_target_are_read_from_the_lines(module):
    """Of the committed runs, with rules that the benchmark measures, too."""
    own = module("time_to_accuracy.experiment")
    runs = [{"steps": [2, 4], "losses": losses} for losses in ([3, 1], [1, 1], [3, None])]
    assert own.median_steps(runs, -1.5, own.lowered) == 4
    assert own.median_steps(runs[2:], -1.5, own.lowered) is None
    rows = [*own.of_cnn(), *own.of_word2vec(), *own.of_transformer()]
    assert {"cnn", "transformer"} <= {row.task for row in rows}
    assert all(row.steps is None or row.steps > 0 for row in rows)
    benchmark = module("page").of_benchmarks("experiment_steps")
    for row in rows:
        rules = ("one replica", *benchmark.TASKS[row.task][2])
        assert row.rule in rules and row.replicas in {w * d for w, d in benchmark.TOPOLOGIES}


def test_the_readmes_numbers_are_those_of_the_lines(module):
    front_page = module("front_page")
    assert front_page.numbers(front_page.chosen()) in front_page.README.read_text()


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["refuted", "refuted"], "refuted"),
        (["confirmed", "partly"], "partly"),
        (["confirmed", "unconfirmed"], "mixed"),
        ([], "open"),
    ],
)
def test_the_verdict_on_a_claim_is_one_word(module, words, word):
    experiment = module("experiment")
    verdicts = [experiment.Verdict(own, "c", {}) for own in words]
    assert experiment.Claim("a", "b", verdicts).word == word


def test_the_pages_have_a_place_for_every_experiment(module):
    page = module("page")
    texts = [path.read_text() for path in page.PAGES.glob("*.md")]
    names = [name for text in texts for name in page.BEGIN.findall(text)]
    assert len(names) == len(set(names))
    for name in module("__main__").NAMES:
        assert {name, f"{name} claim 1"} <= set(names)
