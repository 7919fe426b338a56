"""The doctor on several workers, for real; who waits for whom is in tests/unit/doctor."""

import json
import os
import subprocess
import sys

import pytest

from tf_adasum.environment_variables import TRANSPORT
from tf_adasum.transport import argument


@pytest.mark.version_independent
@pytest.mark.costly
def test_two_workers_under_the_launcher(tmp_path):
    launched = [sys.executable, "-m", "tf_adasum.launch", "-n", "2", "--devices-per-worker", "2"]
    result = subprocess.run(
        [*launched, "-m", "tf_adasum.doctor", "--json", "--links", str(tmp_path / "links.json")],
        capture_output=True,
        text=True,
        timeout=200,
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    mark = "[worker 0] "
    lines = result.stdout.splitlines()
    assert all(line.startswith(mark) for line in lines)  # the other one prints nothing
    report = json.loads("\n".join(line.removeprefix(mark) for line in lines))
    assert report["usable"] and report["found_by"] == "TF_CONFIG"
    cluster = report["cluster"]
    assert [each["devices"] for each in cluster["workers"]] == [["CPU:0", "CPU:1"]] * 2
    assert {each["tensorflow"] for each in cluster["workers"]} == {report["tensorflow"]}
    assert {(each["from"], each["to"]) for each in cluster["pairs"]} == {(0, 1), (1, 0)}
    assert all(each["bytes_per_second"] > 1e6 for each in cluster["pairs"])
    assert any("no link between two hosts" in each["text"] for each in cluster["findings"])
    small, large = cluster["exchanges"]
    assert (small["bytes"], large["bytes"]) == (4 * 2**20, 64 * 2**20)
    assert 0 < min(small["seconds"]) and (large.get("left_out") or min(large["seconds"]) > 0)
    assert small["over"] == large.get("over", small["over"])
    ucx = os.environ[TRANSPORT] == argument.UCX
    assert small["over"].startswith("UCX " if ucx else "TensorFlow's collectives")
