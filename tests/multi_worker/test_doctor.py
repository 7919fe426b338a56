"""The doctor on several workers, for real; who waits for whom is in tests/unit/doctor."""

import os
import sys

import pytest
from support.launching import output_of

from tf_adasum.environment_variables import TRANSPORT
from tf_adasum.transport import argument


@pytest.mark.version_independent
@pytest.mark.slow
def test_two_workers_under_the_launcher():
    command = [sys.executable, "-m", "tf_adasum.launch", "-n", "2", "-m", "tf_adasum.doctor"]
    without = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    lines = output_of(*command, env=without, stderr=None).splitlines()
    mark = "[worker 0] "
    assert all(line.startswith(mark) for line in lines)  # the other one prints nothing
    *_, exchange, other = (line.removeprefix(mark) for line in lines)
    ucx = os.environ[TRANSPORT] == argument.UCX
    over = "UCX " if ucx else "TensorFlow's collectives"
    assert exchange.startswith(f"ok    exchange      2 replicas combine gradients over {over}")
    assert other.startswith("ok    worker 1 (")
    assert f"{mark}ok    links         all other workers can be reached" in lines
