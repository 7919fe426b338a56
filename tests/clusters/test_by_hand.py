"""Workers on two hosts, started by hand: each host is a network namespace."""

import os
import subprocess

import pytest
from support import network
from support.pace import PACE

SECONDS = 200 * PACE


@pytest.mark.slow
@pytest.mark.skipif(
    bool(network.reason_to_skip()), reason=f"no network here: {network.reason_to_skip()}"
)
def test_workers_on_two_hosts_train_as_the_launcher(training, assert_as_launched, tmp_path):
    told = {**os.environ, **training.environment, "TF_ADASUM_WORLD_SIZE": "4"}
    with network.Network(2) as hosts:
        told["TF_ADASUM_COORDINATOR"] = f"{hosts.hosts[0].address}:12345"
        workers = [
            hosts.hosts[rank // 2].popen(
                [*training.command, tmp_path],
                env={**told, "TF_ADASUM_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(4)
        ]
        said = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, said
    assert "tf_adasum: 4 workers, 4 replicas over " in said[0]
    assert_as_launched(tmp_path)
