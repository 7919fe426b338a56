"""Workers that `mpirun` starts, by the example's script."""

import os
import pathlib
import re
import shutil
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples/clusters/mpi/train.sh"
PATH = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI's mpirun is not installed"),
]


def test_mpirun_trains_as_the_launcher(training, assert_as_launched, tmp_path):
    said = training.run(SCRIPT, training.command[1], tmp_path, **AS_ROOT, PATH=PATH)
    assert "tf_adasum: 4 workers, 4 replicas over " in said
    assert_as_launched(tmp_path)


def test_mpirun_ends_all_workers_when_one_is_lost(training, tmp_path):
    command = [SCRIPT, training.command[1]]
    status, said, seconds = training.lose_worker_1(tmp_path, *command, **AS_ROOT, PATH=PATH)
    assert status == 137 and seconds < 60 and re.search(r"rank 1 .*\ssignal 9", said, re.S), said
