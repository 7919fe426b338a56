"""Whether the doctor is one of several workers."""

import json
import socket

import pytest

from tf_adasum.doctor import environment_checks
from tf_adasum.doctor.findings import FAIL, NOTE, OK


def levels(findings):
    return [finding.level for finding in findings]


def tf_config(addresses=("127.0.0.1:1",), kind="worker", index=0):
    jobs = {"worker": list(addresses), "ps": ["p:9"], "evaluator": ["e:9"]}
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": task})}


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return port


@pytest.mark.parametrize("index", [1, "1"])
def test_tf_config_in_order(free_port, index):
    environment = tf_config(["other:99", f"127.0.0.1:{free_port}"], index=index)
    findings = environment_checks.check_tf_config(environment)
    assert levels(findings) == [OK, OK]
    assert "worker 1 of other:99" in findings[0].text
    assert str(free_port) in findings[1].text


def test_the_chief_is_the_first_task(free_port):
    jobs = {"worker": ["other:99"], "chief": [f"127.0.0.1:{free_port}"], "ps": ["p:1"]}
    text = json.dumps({"cluster": jobs, "task": {"type": "chief", "index": 0}})
    found, port = environment_checks.check_tf_config({"TF_CONFIG": text})
    assert (found.level, found.text) == (OK, f"chief 0 of 127.0.0.1:{free_port}, other:99")
    assert str(free_port) in port.text


@pytest.mark.parametrize("text", [None, "", "{}", '{"cluster": {}}', '{"task": {}}'])
def test_tf_config_is_optional(text):
    environment = {"TF_CONFIG": text} if text is not None else {}
    assert levels(environment_checks.check_tf_config(environment)) == [NOTE]


def test_a_port_in_use():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        findings = environment_checks.check_tf_config(tf_config([f"127.0.0.1:{port}"]))
    assert levels(findings) == [OK, FAIL]
    assert f"port {port}" in findings[1].text and "ss -ltnp" in findings[1].fix


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"TF_CONFIG": "{"}, "not valid JSON"),
        ({"TF_CONFIG": "[" * 100_000}, "not valid JSON"),
        ({"TF_CONFIG": "[]"}, "must look like"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "does not say which task this is"),
        ({"TF_CONFIG": '{"cluster": 3, "task": 4}'}, "must look like"),
        (tf_config(kind="chief"), "does not contain this task"),
        (tf_config(kind="ps"), "Only 'chief' and 'worker' tasks train"),
        (tf_config(kind="evaluator"), "Only 'chief' and 'worker' tasks train"),
        (tf_config(index="one"), "must be a whole number"),
        (tf_config(index=1), "Received: worker 1"),
        (tf_config(index=-1), "Received: worker -1"),
        (tf_config([]), "Received: worker 0"),
        (tf_config(["localhost"]), "'host:port'"),
        (tf_config(["localhost:port"]), "'host:port'"),
        (tf_config(["localhost:70000"]), "from 1 to 65535"),
        (tf_config(["a:1", "a:1"]), "one address to two tasks"),
    ],
)
def test_tf_config_out_of_order(environment, text):
    (finding,) = environment_checks.check_tf_config(environment)
    assert finding.level == FAIL
    assert text in finding.text
    assert "tf-adasum-launch" in finding.fix


def test_who_started_it_together_with_others():
    told = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
    (finding,), invitation = environment_checks.find(told)
    assert finding.level == OK and "worker 1 of 2, with the rendezvous at a:29500" in finding.text
    assert (invitation.rank, invitation.num_workers) == (1, 2)
    *_, failed = environment_checks.find({**told, "RANK": "2"})[0]
    assert failed.level == FAIL and "RANK" in failed.text
    assert environment_checks.find({**told, "RANK": "2"})[1] is None
    assert environment_checks.find({})[1] is None


def test_a_cluster_of_tf_config(free_port):
    findings, cluster = environment_checks.find(tf_config([f"127.0.0.1:{free_port}", "b:1"]))
    assert levels(findings) == [OK, OK] and cluster.names == ("worker 0", "worker 1")
    assert environment_checks.find({"TF_CONFIG": "{"})[1] is None
