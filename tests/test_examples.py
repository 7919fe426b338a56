"""The examples, as a user starts them."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def test_digits_on_two_workers(tmp_path):
    """Every step of the demo: launcher, strategy, data, table, history and picture."""
    command = [sys.executable, "-m", "tf_adasum.launch", "-n", "2", "examples/train_digits.py"]
    settings = ["--epochs", "2", "--batch-per-replica", "16", "--out", str(tmp_path / "run")]
    ended = subprocess.run(
        [*command, *settings], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = ended.stdout.splitlines()
    assert any(line.startswith("[worker 0] adasum") for line in lines)
    # Worker 1 neither reports nor shows progress.
    assert not any("Epoch" in line for line in lines if line.startswith("[worker 1]"))
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["replicas"] == 2
    assert run["loss"][1] < run["loss"][0]
    assert (tmp_path / "run.png").stat().st_size > 10_000
