"""The benchmarks, as far as a machine without a GPU can run them."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from support import keras_versions, network

ROOT = pathlib.Path(__file__).resolve().parent.parent

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no g++ to compile the emulation"
)


@pytest.fixture
def run_main(load, monkeypatch):
    """A function that runs the `main` of a benchmark with arguments, without a GPU in sight."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        load(name).main()

    return run


@needs_compiler
@pytest.mark.slow
@pytest.mark.version_independent
def test_dry_run_of_the_gpu_benchmark(run_main, tmp_path, capsys):
    run_main("kernels_gpu", "--emulated", "--rounds", 2, "--out", tmp_path / "reports")
    assert "these numbers mean nothing" in capsys.readouterr().out
    assert not (tmp_path / "reports").exists()


@needs_compiler
@pytest.mark.version_independent
def test_gpu_benchmark_refuses_to_time_a_wrong_kernel(load, run_main, monkeypatch, capsys):
    expected = load("gpu_expected")
    for name in ("SUMS", "ROUNDING"):  # nothing is as exact as this
        monkeypatch.setattr(expected, name, dict.fromkeys(getattr(expected, name), 0.0))
    with pytest.raises(SystemExit, match="wrong kernels, so there is no report") as ended:
        run_main("kernels_gpu", "--emulated")
    for kernel in ("pairwise float32", "Gram bfloat16", "weighted-sum float32"):
        assert kernel in str(ended.value)
    assert "cold" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.version_independent
def test_gpu_report_runs_dry_and_says_what_it_skipped(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_report.py"), "--dry"]
    options = ["--parts", "tests", "fit", "--models", "embeddings", "--rounds", "2", "--steps", "3"]
    subprocess.run([*command, *options, "--out", tmp_path], check=True, timeout=400)
    (written,) = tmp_path.glob("*.md")
    report = written.read_text()
    (row,) = [line for line in report.splitlines() if line.startswith("| embeddings")]
    assert row.endswith("| yes / yes |")
    assert "nan" not in row
    assert "- Tests of the op: no GPU" in report


@pytest.fixture
def reported(load, run_main, monkeypatch):
    """A function of a benchmark's name and arguments: what it would write as its report."""
    written = []
    monkeypatch.setattr(load("report"), "write", lambda name, title, body: written.append(body))

    def run(*arguments):
        run_main(*arguments)
        return written.pop()

    return run


@pytest.mark.slow
def test_random_events_leave_out_no_row_and_leave_nothing_behind(reported):
    if reason := network.reason_to_skip():
        pytest.skip(reason)
    body = reported("elastic_events", "--events", "3")
    assert re.search(r"launchers: ([-\d, ]+)\.", body)[1] == "0, 0, 0, 0"
    assert "Missing steps: 0." in body
    assert not re.search(r": [1-9]\d* rows not used", body)
    assert "that are left: none." in body


@pytest.mark.slow
@keras_versions.needs_own_backups
def test_workers_killed_at_random_moments_end_as_if_they_were_not(load, tmp_path):
    restarts = load("restarts")

    unbroken = restarts.run(tmp_path / "unbroken", 7)
    broken = restarts.run(tmp_path / "broken", 7, 1, seed=1, training=unbroken["training"])
    assert restarts.same(broken["end"], unbroken["end"])
    changed = [{**each, "0": each["0"] + 1} for each in unbroken["end"]]
    assert not restarts.same(changed, unbroken["end"])


@pytest.mark.version_independent
def test_seeded_bugs_have_their_places(load):
    for bug, own in load("seeded_bugs").BUGS.items():
        assert (ROOT / own["file"]).read_text().count(own["original"]) == 1, bug


SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


@pytest.mark.version_independent
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_opens(load, run_main, name):
    """Its imports are there, and its options are understood."""
    if name == "simgrid_network":
        pytest.skip("it runs with Debian's Python")
    if "ArgumentParser" not in (ROOT / "benchmarks" / f"{name}.py").read_text():
        load(name)
        return
    with pytest.raises(SystemExit) as ended:
        run_main(name, "--help")
    assert ended.value.code == 0
