"""Workers that `torchrun` starts: PyTorch may be installed in another environment."""

import shutil

import pytest
from support.worker_group import free_ports


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("torchrun"), reason="no torchrun on the path: PyTorch")
def test_torchrun_trains_as_the_launcher(training, assert_as_launched, tmp_path):
    variables = (f"{name}={value}" for name, value in training.environment.items())
    options = ["--nproc_per_node", 4, "--master_port", free_ports(1)[0], "--no_python"]
    options += ["--redirects", 1, "--tee", 1]  # Debian's version cannot start without them
    command = ["torchrun", *options, "env", *variables, *training.command, tmp_path]
    said = training.run(*command, without="PYTHONPATH")
    assert "tf_adasum: 4 workers, 4 replicas over " in said
    assert_as_launched(tmp_path)
