"""Workers that `mpirun` starts, by the example's script."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 400
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI's mpirun is not installed")
def test_mpirun_trains_as_the_launcher(training, tmp_path):
    python, *script = training.command
    path = f"{os.path.dirname(python)}:{os.environ['PATH']}"
    ended = subprocess.run(
        [str(ROOT / "examples/clusters/mpi/train.sh"), *script, str(tmp_path)],
        env={**os.environ, **training.environment, **AS_ROOT, "PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = "tf_adasum: 4 workers, 4 replicas over "
    assert said in ended.stdout + ended.stderr
    training.assert_as_launched(tmp_path)
