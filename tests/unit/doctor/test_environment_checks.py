"""Whether the doctor is one of several workers."""

import json
import socket

import pytest

from tf_adasum.doctor import environment_checks
from tf_adasum.doctor.findings import FAIL, NOTE, OK


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_a_cluster_is_optional(environment):
    (finding,), cluster = environment_checks.find(environment)
    assert (finding.level, cluster) == (NOTE, None)


def test_tf_config_out_of_order_is_named_with_a_fix():
    (finding,), cluster = environment_checks.find({"TF_CONFIG": "[" * 100_000})
    assert (finding.level, cluster) == (FAIL, None)
    assert "not valid JSON" in finding.text and "tf-adasum-launch" in finding.fix


@pytest.mark.parametrize("is_used", [False, True])
def test_the_port_of_a_task_of_tf_config_has_to_be_free(is_used):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_used:
            server.close()
        jobs = {"worker": ["other:99"], "chief": [f"127.0.0.1:{port}"], "ps": ["p:1"]}
        config = {"cluster": jobs, "task": {"type": "chief", "index": 0}}
        (task, found), cluster = environment_checks.find({"TF_CONFIG": json.dumps(config)})
    assert (task.level, task.text) == (OK, f"chief 0 of 127.0.0.1:{port}, other:99")
    if is_used:
        assert (found.level, cluster) == (FAIL, None)
        assert f"port {port}: " in found.text and "ss -ltnp" in found.fix
    else:
        assert (found.level, found.text) == (OK, f"port {port} is free")
        assert cluster.names == ("chief 0", "worker 0")


def test_who_started_it_together_with_others():
    told = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
    (finding,), config = environment_checks.find(told)
    assert finding.level == OK and "worker 1 of 2, with the rendezvous at a:29500" in finding.text
    assert (config.rank, config.num_workers) == (1, 2)
    (_, failed), config = environment_checks.find({**told, "RANK": "2"})
    assert (failed.level, config) == (FAIL, None) and "RANK" in failed.text
