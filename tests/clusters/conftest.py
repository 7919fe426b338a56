"""Services that start workers: each is started here, by the tests that need it, and stopped."""

import os
import pathlib
import sys

import numpy as np
import pytest
from support import slurm
from support.launching import output_of
from support.pace import PACE

HERE = pathlib.Path(__file__).parent
SECONDS = 200 * PACE


class Training:
    """Runs tests/clusters/train.py, and compares the workers' weights with the launcher's.

    Attributes:
        command: that of a worker, to which a folder is added.
        environment: of a worker, besides that of the tests: four workers run on two cores.
    """

    command = (sys.executable, str(HERE / "train.py"))
    environment = {  # noqa: RUF012 - nobody changes it
        "PYTHONPATH": str(HERE.parents[1]),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }

    def run(self, *command, without="TF_CONFIG", **variables):
        """Run a command that starts workers, with further variables; return what it prints."""
        environment = {**os.environ, **self.environment, **variables}
        environment.pop(without, None)
        return output_of(*command, env=environment, timeout=SECONDS)

    def launch(self, folder, count):
        """Train on workers of the launcher."""
        launcher = [sys.executable, "-m", "tf_adasum.launch", "-n", count]
        self.run(*launcher, *self.command[1:], folder)

    @staticmethod
    def assert_equal(folder, launched, count):
        """Check that each worker of one folder has the weights of the other's, to the bit."""
        assert len(list(folder.glob("*.npz"))) == count
        for rank in range(count):
            own, others = (np.load(each / f"{rank}.npz") for each in (folder, launched))
            assert own.files == others.files
            for name in own.files:
                np.testing.assert_array_equal(own[name], others[name], f"{name} on {rank}")


@pytest.fixture(scope="session")
def training():
    """The `Training`."""
    return Training()


@pytest.fixture(scope="session")
def assert_as_launched(training, tmp_path_factory):
    """A function of a folder: four workers there have the weights of the launcher's."""
    launched = tmp_path_factory.mktemp("launched")
    training.launch(launched, 4)
    return lambda folder: training.assert_equal(folder, launched, 4)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory):
    """A `slurm.Slurm`."""
    if reason := slurm.reason_to_skip():
        pytest.skip(f"no Slurm can be started here: {reason}")
    made = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield made
    made.close()
