"""Ray Train starts two workers of the example on a Ray of this machine."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "clusters" / "ray" / "train.py"
PROGRAM = ROOT / "tests" / "clusters" / "train.py"
SECONDS = 300
# A Ray that is reached from this machine alone.
LOCAL_RAY = """
import runpy, sys
import ray
ray.init(_node_ip_address="127.0.0.1", num_cpus=3, include_dashboard=False)
"""
# The example takes the Ray that is there.
OF_THE_EXAMPLE = LOCAL_RAY + "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
# Workers run the program that all services of these tests start.
OF_THE_PROGRAM = f"""{LOCAL_RAY}
from ray.train import ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

program, folder = sys.argv[1:]

def train():
    sys.argv = [program, folder]
    runpy.run_path(program, run_name="__main__")

TensorflowTrainer(train, scaling_config=ScalingConfig(num_workers=2)).fit()
"""


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


@pytest.mark.slow
@pytest.mark.keras3_only("Ray 2.60 needs a newer NumPy than TensorFlow 2.15")
@pytest.mark.skipif(
    not is_there("ray.train"), reason='Ray is not installed: pip install "ray[train]"'
)
@pytest.mark.feature("Ray Train", topology="2x1")
def test_two_workers_of_ray_train(tmp_path):
    stored, by_ray, by_launcher = (tmp_path / name for name in ("stored", "ray", "launcher"))
    by_ray.mkdir()
    by_launcher.mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
        **{"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        **{"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        "RAY_USAGE_STATS_ENABLED": "0",
    }

    def run(*command):
        options = {"capture_output": True, "text": True, "timeout": SECONDS}
        ended = subprocess.run([sys.executable, *map(str, command)], env=environment, **options)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout, ended.stdout + ended.stderr

    arguments = ["--workers", 2, "--epochs", 2, "--storage", stored]
    printed, said = run("-c", OF_THE_EXAMPLE, EXAMPLE, *arguments)
    assert "tf_adasum: 2 workers, 2 replicas over " in said
    assert "'epochs': 2" in printed, "the metrics of the last epoch"
    models = sorted(stored.rglob("model.keras"))
    assert len(models) == 2, "a checkpoint for each epoch, from the first worker"

    run("-c", OF_THE_PROGRAM, PROGRAM, by_ray)
    run("-m", "tf_adasum.launch", "-n", 2, PROGRAM, by_launcher)
    for rank in range(2):
        own, others = (np.load(folder / f"{rank}.npz") for folder in (by_ray, by_launcher))
        for name in others.files:
            np.testing.assert_array_equal(own[name], others[name])
