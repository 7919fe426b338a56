"""Workers that `mpirun`, `srun` and `torchrun` start, each if it is installed."""

import os
import pathlib
import re
import shutil
import sys

import pytest
from support.worker_group import free_ports

SCRIPT = pathlib.Path(__file__).parents[2] / "examples/clusters/mpi/train.sh"
FOR_MPIRUN = {
    "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
# What each returns and says when worker 1 is killed. Slurm returns the highest status of a task.
# Those of the others depend on what ends them.
OF_A_LOSS = {
    "mpirun": ((137,), r"rank 1 .*\ssignal 9"),
    "srun": ((137, 143), "task 1: Killed"),
    "torchrun": ((1,), r"exitcode\s*: -9"),
}
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("starter", OF_A_LOSS)]


@pytest.fixture
def command(starter, training, request):
    """The command that starts four workers, to which a folder is added, and its environment."""
    if starter == "srun":
        srun = ["srun", "-N", "2", "-n", "4", "--kill-on-bad-exit=1", *training.command]
        environment = request.getfixturevalue("slurm_cluster").environment
        return srun, {"SLURM_CONF": environment["SLURM_CONF"]}
    if not shutil.which(starter):
        pytest.skip(f"not installed: {starter}")
    if starter == "mpirun":
        return [SCRIPT, training.command[1]], FOR_MPIRUN
    # PyTorch may be installed in another environment.
    variables = (f"{name}={value}" for name, value in training.environment.items())
    options = ["--nproc_per_node", 4, "--master_port", free_ports(1)[0], "--no_python"]
    options += ["--redirects", 1, "--tee", 1]  # Debian's version cannot start without them
    torchrun = ["torchrun", *options, "env", *variables, *training.command]
    return torchrun, {"without": "PYTHONPATH"}


def test_workers_train_as_those_of_the_launcher(command, training, assert_as_launched, tmp_path):
    started, variables = command
    said = training.run(*started, tmp_path, **variables)
    assert "tf_adasum: 4 workers, 4 replicas over " in said
    assert_as_launched(tmp_path)


def test_all_workers_end_when_one_is_lost(command, starter, training, tmp_path):
    started, variables = command
    status, said, seconds = training.lose_worker_1(tmp_path, *started, **variables)
    statuses, pattern = OF_A_LOSS[starter]
    assert status in statuses and seconds < 60 and re.search(pattern, said, re.S), said
