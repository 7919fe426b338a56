"""Workers on two hosts, started by hand: each host is a network namespace."""

import os
import subprocess

import pytest
from support import network

SECONDS = 400


@pytest.mark.slow
@pytest.mark.skipif(bool(network.why_not()), reason=f"no network here: {network.why_not()}")
def test_workers_on_two_hosts_train_as_the_launcher(training, tmp_path):
    with network.Network(2) as hosts:
        workers = []
        for rank in range(4):
            told = {
                "TF_ADASUM_COORDINATOR": f"{hosts.hosts[0].address}:12345",
                "TF_ADASUM_WORLD_SIZE": "4",
                "TF_ADASUM_RANK": str(rank),
            }
            with open(tmp_path / f"{rank}.log", "w") as log:
                worker = hosts.hosts[rank // 2].popen(
                    [*training.command, tmp_path],
                    env={**os.environ, **training.environment, **told},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            workers.append(worker)
        codes = [worker.wait(SECONDS) for worker in workers]
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(4)]
    assert codes == [0] * 4, logs
    assert "tf_adasum: 4 workers, 4 replicas over " in logs[0]
    training.assert_as_launched(tmp_path)
