"""Workers that `mpirun` starts."""

import os
import shutil
import subprocess

import pytest

SECONDS = 400
# Of Open MPI: as root, and more processes than cores.
HERE = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mpirun"), reason="Open MPI's mpirun is not installed")
def test_mpirun_trains_as_the_launcher(training, tmp_path):
    ended = subprocess.run(
        ["mpirun", *HERE, "-np", "4", *training.command, str(tmp_path)],
        env={**os.environ, **training.environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tf_adasum: Open MPI (OMPI_COMM_WORLD_RANK): 4 workers x 1 device" in ended.stderr
    training.assert_as_launched(tmp_path)
