"""Services that start workers: each is started here, by the tests that need it, and stopped."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from support import slurm

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 400  # of a start of four workers on two cores that do something else, too


class Training:
    """Runs tests/clusters/train.py, and knows what the launcher's workers end with.

    Attributes:
        command: that of a worker, to which a folder is added.
        environment: of a worker, besides that of the tests.
    """

    def __init__(self, launched):
        self.command = [sys.executable, str(HERE / "train.py")]
        self.environment = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **few_threads()}
        self._launched = launched

    def assert_as_launched(self, folder, count=4):
        """Check that each of the workers has the weights of the launcher's, to the bit."""
        assert len(list(folder.glob("*.npz"))) == count
        for rank in range(count):
            own, others = (np.load(each / f"{rank}.npz") for each in (folder, self._launched))
            assert own.files == others.files
            for name in own.files:
                np.testing.assert_array_equal(own[name], others[name], f"{name} on {rank}")


def few_threads():
    """Four workers on two cores."""
    return {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture(scope="session")
def training(tmp_path_factory):
    """The `Training`; four workers of the launcher have run."""
    folder = tmp_path_factory.mktemp("launched")
    made = Training(folder)
    command = [sys.executable, "-m", "tf_adasum.launch", "-n", "4", *made.command[1:], str(folder)]
    environment = {**os.environ, **made.environment}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return made


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """A `slurm.Slurm`."""
    reason = slurm.why_not()
    if reason:
        pytest.skip(f"no Slurm can be started here: {reason}")
    made = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield made
    made.close()
