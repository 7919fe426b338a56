"""The doctor on several workers, for real; who waits for whom is in tests/unit/doctor."""

import os
import subprocess
import sys

import pytest
from support.pace import PACE

from tf_adasum.environment_variables import TRANSPORT
from tf_adasum.transport import argument


@pytest.mark.version_independent
@pytest.mark.slow
def test_two_workers_under_the_launcher():
    launched = [sys.executable, "-m", "tf_adasum.launch", "-n", "2"]
    result = subprocess.run(
        [*launched, "-m", "tf_adasum.doctor"],
        capture_output=True,
        text=True,
        timeout=100 * PACE,
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    mark = "[worker 0] "
    lines = result.stdout.splitlines()
    assert all(line.startswith(mark) for line in lines)  # the other one prints nothing
    *_, exchange, other = (line.removeprefix(mark) for line in lines)
    ucx = os.environ[TRANSPORT] == argument.UCX
    over = "UCX " if ucx else "TensorFlow's collectives"
    assert exchange.startswith(f"ok    exchange      2 replicas combine gradients over {over}")
    assert other.startswith("ok    worker 1 (")
    assert f"{mark}ok    links         all other workers can be reached" in lines
