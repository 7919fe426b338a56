"""Workers that `torchrun` starts: PyTorch may be installed in another environment."""

import os
import shutil
import subprocess

import pytest
from support.worker_group import free_ports

SECONDS = 400


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("torchrun"), reason="no torchrun on the path: PyTorch")
def test_torchrun_trains_as_the_launcher(training, tmp_path):
    environment = (f"{name}={value}" for name, value in training.environment.items())
    ended = subprocess.run(
        [
            *["torchrun", "--nproc_per_node", "4", "--master_port", str(free_ports(1)[0])],
            *["--no_python", "env", *environment, *training.command, str(tmp_path)],
        ],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = "tf_adasum: 4 workers, 4 replicas over "
    assert said in ended.stdout + ended.stderr
    training.assert_as_launched(tmp_path)
