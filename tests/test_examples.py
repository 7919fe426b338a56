"""The examples, as a user starts them."""

import json
import pathlib
import sys
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from support import keras_versions
from support.launching import output_of

from tf_adasum.aggregation import LocalReductionPlanner, Scheme, aggregate

ROOT = pathlib.Path(__file__).parent.parent


def run(script, *arguments, launcher=()):
    """Return the lines that an example prints."""
    command = [sys.executable, *launcher, f"examples/{script}", *arguments]
    return output_of(*command, cwd=ROOT, stderr=None).splitlines()


@pytest.mark.slow
def test_digits_on_two_workers(tmp_path):
    """Every step of the demo: launcher, strategy, data, table, history and picture."""
    settings = ["--epochs", 2, "--batch-per-replica", 48, "--out", tmp_path / "run"]
    settings += ["--seeds", 0, 1, 0]
    lines = run("train_digits.py", *settings, launcher=["-m", "tf_adasum.launch", "-n", "2"])
    assert any(line.startswith("[worker 0] adasum") for line in lines)
    # Worker 1 neither reports nor shows progress.
    assert not any("Epoch" in line for line in lines if line.startswith("[worker 1]"))
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["replicas"] == 2
    first, second, again = written["loss"]
    assert first[1] < first[0]
    assert first == again != second  # nothing of an earlier seed is left
    assert (tmp_path / "run.png").stat().st_size > 10_000


@pytest.mark.keras3_only("the examples are written for Keras 3")
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["adasum", "mean"])
@pytest.mark.parametrize(
    "script", ["adversarial_training", "image_classifier", "recommender", "text_model", "vae"]
)
def test_a_job_prints_its_score(load, script, rule, monkeypatch, capsys):
    """On little data; experiments/jobs/README.md has the results on all of it."""
    random = np.random.default_rng(0)
    images = random.integers(256, size=[6200, 28, 28], dtype=np.uint8)
    labels = random.integers(10, size=6200)
    clothes = mock.Mock(return_value=((images, labels), (images[:100], labels[:100])))
    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", clothes)
    module = load(script)
    monkeypatch.setattr(module, "RATINGS", 2000, raising=False)
    options = ["--rule", rule, "--epochs", "1", "--test"]
    options += ["--text", str(ROOT / "README.md")] if script == "text_model" else []
    monkeypatch.setattr(sys, "argv", [script, *options])
    module.main()
    jobs = load("experiments.jobs.experiment")
    assert jobs.RESULT.search(capsys.readouterr().out)
    assert any(job.script == script for job in jobs.JOBS)


def median_clip(gradients):
    """The definition, on the vectors."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    factors = np.minimum(1, np.median(norms) / np.where(norms > 0, norms, 1))
    return np.mean(factors * gradients, axis=0)


@pytest.mark.parametrize("lengths", [[3], [1, 2], [1, 0, 9], [5, 1, 100, 2], [0, 0, 7, 0, 0]])
def test_the_custom_rule_clips_to_the_median(load, lengths):
    vectors = np.random.default_rng(len(lengths)).standard_normal([len(lengths), 30])
    vectors *= np.array(lengths)[:, None] / np.linalg.norm(vectors, axis=1, keepdims=True)
    rule = load("custom_rule").MedianClip()
    # Two variables, which share their coefficients.
    gradients = [[tf.constant(vector[:10]), tf.constant(vector[10:])] for vector in vectors]
    combined = aggregate(gradients, LocalReductionPlanner(Scheme(rule, len(lengths))))
    # float64 with a square root and a division: some units in the last place.
    np.testing.assert_allclose(np.concatenate(combined), median_clip(vectors), rtol=0, atol=1e-13)


@pytest.mark.version_independent
@pytest.mark.slow
def test_the_custom_rule_bears_a_broken_replica():
    mean, clipped = run("custom_rule.py", "--epochs", 2)
    accuracy = {line.split("  ")[0].strip(): float(line.split()[-1]) for line in (mean, clipped)}
    assert accuracy["mean"] < 0.5 and accuracy["median clip"] > 0.75


@pytest.mark.version_independent
@pytest.mark.slow
def test_adacons_is_ahead_of_the_mean_in_the_regression(tmp_path):
    report = tmp_path / "report.md"
    *_, row = run("adacons_linear_regression.py", "--quick", "--report", report)
    _, step, batch, workers, mean, _, adacons, _, _ = (cell.strip() for cell in row.split("|"))
    assert (step, batch, workers) == ("distance", "128", "4")
    assert float(adacons.split()[0]) < float(mean.split()[0]) / 10
    assert row in report.read_text()


@keras_versions.needs_accumulation
@pytest.mark.slow
def test_adascale_against_linear_scaling(load, monkeypatch, tmp_path):
    """The same run for S = 1; with S = 4 between T/S and T iterations, and a table of all."""
    options = f"--scales 1 4 --seeds 0 --steps 48 --out {tmp_path}/x"
    monkeypatch.setattr(sys, "argv", ["adascale_digits.py", *options.split()])
    load("adascale_digits").main()
    runs = json.loads((tmp_path / "x.json").read_text())
    found = {(each["method"], each["scale"]): each for each in runs}
    assert len(found) == len(runs) == 6
    adascale, lsw, lsw_plus = (found[method, 1] for method in ("AS", "LSW", "LSW+"))
    assert adascale["loss"] == lsw["loss"] == lsw_plus["loss"]
    assert adascale["iterations"] == 48
    adascale, lsw, lsw_plus = (found[method, 4]["iterations"] for method in ("AS", "LSW", "LSW+"))
    assert lsw == 12 <= adascale == lsw_plus < 48
    assert found["AS", 4]["steps"][-1] >= 48 > found["AS", 4]["steps"][-2]
    assert "| 4 | 64 |" in (tmp_path / "x.md").read_text()
    assert (tmp_path / "x.png").stat().st_size > 10_000
