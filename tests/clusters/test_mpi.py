"""Workers that `mpirun` starts, by the example's script."""

import os
import pathlib
import shutil

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples/clusters/mpi/train.sh"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI's mpirun is not installed")
def test_mpirun_trains_as_the_launcher(training, assert_as_launched, tmp_path):
    python, program = training.command
    path = f"{os.path.dirname(python)}:{os.environ['PATH']}"
    said = training.run(SCRIPT, program, tmp_path, **AS_ROOT, PATH=path)
    assert "tf_adasum: 4 workers, 4 replicas over " in said
    assert_as_launched(tmp_path)
