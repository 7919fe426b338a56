"""Workers that `torchrun` starts: PyTorch may be installed in another environment."""

import re
import shutil

import pytest
from support.worker_group import free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("torchrun"), reason="no torchrun on the path: PyTorch"),
]


def command_of(training):
    variables = (f"{name}={value}" for name, value in training.environment.items())
    options = ["--nproc_per_node", 4, "--master_port", free_ports(1)[0], "--no_python"]
    options += ["--redirects", 1, "--tee", 1]  # Debian's version cannot start without them
    return ["torchrun", *options, "env", *variables, *training.command]


def test_torchrun_trains_as_the_launcher(training, assert_as_launched, tmp_path):
    said = training.run(*command_of(training), tmp_path, without="PYTHONPATH")
    assert "tf_adasum: 4 workers, 4 replicas over " in said
    assert_as_launched(tmp_path)


def test_torchrun_ends_all_workers_when_one_is_lost(training, tmp_path):
    command = command_of(training)
    status, said, seconds = training.lose_worker_1(tmp_path, *command, without="PYTHONPATH")
    assert status == 1 and seconds < 60 and re.search(r"exitcode\s*: -9", said), said
