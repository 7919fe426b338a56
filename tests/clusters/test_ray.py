"""Ray Train starts two workers of the example on a Ray of this machine."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "clusters" / "ray" / "train.py"
# A Ray that is reached from this machine alone; the example takes the one that is there.
ON_A_LOCAL_RAY = """
import runpy, sys
import ray
ray.init(_node_ip_address="127.0.0.1", num_cpus=3, include_dashboard=False)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


@pytest.mark.keras3_only("Ray 2.60 needs a newer NumPy than TensorFlow 2.15")
@pytest.mark.skipif(
    not is_there("ray.train"), reason='Ray is not installed: pip install "ray[train]"'
)
@pytest.mark.feature("Ray Train")
def test_two_workers_of_ray_train(tmp_path):
    arguments = ["--workers", "2", "--epochs", "2", "--storage", str(tmp_path)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    environment.pop("TF_CONFIG", None)
    ran = subprocess.run(
        [sys.executable, "-c", ON_A_LOCAL_RAY, str(EXAMPLE), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = ran.stdout + ran.stderr
    assert "TF_CONFIG: 2 workers x 1 device" in said
    assert "'epochs': 2" in ran.stdout, "the metrics of the last epoch"
    models = sorted(tmp_path.rglob("model.keras"))
    assert len(models) == 2, "a checkpoint for each epoch, from the first worker"
