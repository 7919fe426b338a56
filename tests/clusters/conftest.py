"""Services that start workers: each is started here, by the tests that need it, and stopped."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support import slurm
from support.launching import eventually, output_of
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

    def run(self, *command, **variables):
        """Run a command that starts workers, with further variables; return what it prints."""
        return output_of(*command, env=self._variables(**variables), timeout=SECONDS)

    def _variables(self, without="TF_CONFIG", **variables):
        everything = {**os.environ, **self.environment, **variables}
        return {name: value for name, value in everything.items() if name != without}

    def lose_worker_1(self, folder, *command, **variables):
        """Run a command that starts workers, and kill worker 1 after an epoch.

        Returns:
            The exit status of the command, its output, and the seconds from the loss to its end.
        """
        arguments = [*map(str, command), str(folder), str(folder / "backup"), "3"]  # s each epoch
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(arguments, env=self._variables(**variables), **pipes) as process:
            try:
                eventually(lambda: any((folder / "backup").glob("*")), SECONDS)
                os.kill(int((folder / "1.pid").read_text()), signal.SIGKILL)
                begin = time.monotonic()
                text, _ = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        seconds = time.monotonic() - begin
        print(f"{command[0]} ended {seconds:.1f} s later with status {process.returncode}")
        return process.returncode, text, seconds

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
