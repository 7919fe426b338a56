"""Ray Train starts two workers of the examples on a Ray of this machine."""

import functools
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters" / "ray"
# A Ray that is reached from this machine alone.
LOCAL_RAY = """
import runpy, sys
import ray
ray.init("local", _node_ip_address="127.0.0.1", num_cpus=3, include_dashboard=False)
"""
# An example takes the Ray that is there.
OF_AN_EXAMPLE = LOCAL_RAY + "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.keras3_only("Ray 2.60 needs a newer NumPy than TensorFlow 2.15"),
]


@pytest.fixture(autouse=True)
def ray():
    pytest.importorskip("ray.train", reason='Ray is not installed: pip install "ray[train]"')


def test_two_workers_of_ray_train(training, tmp_path):
    stored, by_ray, by_launcher = (tmp_path / name for name in ("stored", "ray", "launcher"))
    by_ray.mkdir()
    by_launcher.mkdir()
    arguments = ["--workers", 2, "--epochs", 2, "--storage", stored]
    run = functools.partial(training.run, sys.executable, "-c", RAY_USAGE_STATS_ENABLED="0")
    printed = run(OF_AN_EXAMPLE, EXAMPLES / "train.py", *arguments)
    assert "tf_adasum: 2 workers, 2 replicas over " in printed
    assert "'epochs': 2" in printed, "the metrics of the last epoch"
    models = sorted(stored.rglob("model.keras"))
    assert len(models) == 2, "a checkpoint for each epoch, from the first worker"

    elastic = [EXAMPLES / "elastic.py", "--workers", 2, 2]
    run(OF_AN_EXAMPLE, *elastic, training.command[1], by_ray)
    training.launch(by_launcher, 2)
    training.assert_equal(by_ray, by_launcher, 2)


def test_ray_starts_all_workers_again_when_one_is_lost(training, tmp_path):
    command = [sys.executable, "-c", OF_AN_EXAMPLE, EXAMPLES / "elastic.py", "--workers", 2, 2]
    status, said, _ = training.lose_worker_1(
        tmp_path, *command, training.command[1], RAY_USAGE_STATS_ENABLED="0"
    )
    assert status == 0 and len(list(tmp_path.glob("*.npz"))) == 2, said
    assert "resuming at epoch" in said
