"""The cluster that TF_CONFIG gives, and what is said where it is wrong."""

import json

import pytest

from tf_adasum.cluster.resolver import resolve
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.tf_config import parse

TWO = {"worker": ["a:1", "b:2"]}
FIRST = {"type": "worker", "index": 0}


@pytest.fixture
def tf_config(monkeypatch):
    """Resolves the cluster with this TF_CONFIG: text, or something to write as JSON."""

    def resolved(config):
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)
        cluster = resolve()[1]
        assert parse(text) == cluster, "the doctor reads it as the strategy"
        return cluster

    return resolved


@pytest.mark.parametrize(
    "config", ["", "{}", {"cluster": {}}, {"task": FIRST}, {"cluster": {}, "task": FIRST}]
)
def test_tf_config_without_a_cluster(tf_config, config):
    assert tf_config(config) is None


@pytest.mark.parametrize("index", [0, 1])
def test_workers(tf_config, index):
    cluster = tf_config({"cluster": TWO, "task": {"type": "worker", "index": index}})
    assert cluster == Cluster(("a:1", "b:2"), ("worker 0", "worker 1"), index)


def test_an_index_may_be_text(tf_config):
    assert tf_config({"cluster": TWO, "task": {"type": "worker", "index": "1"}}).rank == 1


@pytest.mark.parametrize(
    ("task", "rank"), [(("chief", 0), 0), (("worker", 0), 1), (("worker", 1), 2)]
)
def test_the_chief_comes_first(tf_config, task, rank):
    jobs = {"worker": ["a:1", "b:2"], "chief": ["c:3"]}
    cluster = tf_config({"cluster": jobs, "task": {"type": task[0], "index": task[1]}})
    assert cluster.addresses == ("c:3", "a:1", "b:2")
    assert cluster.names == ("chief 0", "worker 0", "worker 1")
    assert cluster.rank == rank
    assert cluster.named([2, 0]) == "worker 1 (b:2), chief 0 (c:3)"


def test_other_jobs_hold_no_replicas(tf_config):
    cluster = tf_config({"cluster": {**TWO, "ps": ["p:9"], "evaluator": ["e:8"]}, "task": FIRST})
    assert cluster.addresses == ("a:1", "b:2")


@pytest.mark.parametrize("address", ["[::1]:80", "10.0.0.1:65535", "host.domain:1"])
def test_good_addresses(tf_config, address):
    assert tf_config({"cluster": {"worker": [address]}, "task": FIRST}).addresses == (address,)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"TF_CONFIG is not valid JSON \(.*\). Received: '\{'"),
        ("worker:0", "TF_CONFIG is not valid JSON"),
        ("[1]", r"must look like .*Received: '\[1\]'"),
        ("3", "must look like"),
        ("null", "must look like"),
        ({"cluster": ["a:1"], "task": FIRST}, "must look like"),
        ({"cluster": None, "task": FIRST}, "must look like"),
        ({"cluster": TWO}, 'does not say which task.*"task": {"type": "worker", "index": 0}'),
        ({"cluster": TWO, "task": "worker"}, "does not say which task"),
        ({"cluster": TWO, "task": {}}, "does not say which task"),
        ({"cluster": TWO, "task": {"type": "worker"}}, "does not say which task"),
        ({"cluster": TWO, "task": {"index": 0}}, "does not say which task"),
    ],
)
def test_what_is_no_tf_config(tf_config, config, message):
    with pytest.raises(ValueError, match=message):
        tf_config(config)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (("worker", 2), "cluster has worker 0, worker 1. Received: worker 2"),
        (("worker", -1), "Received: worker -1"),
        (("chief", 0), "Received: chief 0"),
        (("ps", 0), "task type 'ps' from TF_CONFIG"),
        (("evaluator", 0), "Only 'chief' and 'worker'.*task type 'evaluator' from TF_CONFIG"),
        (("Worker", 0), "task type 'Worker'"),
        ((None, 0), "task type"),
    ],
)
def test_a_task_that_is_not_in_the_cluster(tf_config, task, message):
    jobs = {**TWO, "ps": ["p:3"]}
    with pytest.raises(ValueError, match=message):
        tf_config({"cluster": jobs, "task": {"type": task[0], "index": task[1]}})


@pytest.mark.parametrize("index", ["one", None, 0.5, [0], {}])
def test_an_index_that_is_no_whole_number(tf_config, index):
    with pytest.raises(ValueError, match="TF_CONFIG"):
        tf_config({"cluster": TWO, "task": {"type": "worker", "index": index}})


@pytest.mark.parametrize(
    "jobs", [{"worker": ["a:1", "a:1"]}, {"chief": ["a:1"], "worker": ["b:1", "a:1"]}]
)
def test_one_address_for_two_tasks(tf_config, jobs):
    with pytest.raises(ValueError, match=r"TF_CONFIG gives one address to two tasks.*'a:1'"):
        tf_config({"cluster": jobs, "task": FIRST})


@pytest.mark.parametrize("address", ["a", ":1", "a:", "a:x", "a:0", "a:65536", "a:-1", "a:1.5", ""])
def test_bad_addresses(tf_config, address):
    # On another task than this one.
    needed = "1 to 65535" if address in ("a:0", "a:65536") else "'host:port'"
    with pytest.raises(ValueError, match=f"{needed}. Received: '{address}'"):
        tf_config({"cluster": {"worker": ["b:1", address]}, "task": FIRST})


def test_an_address_that_cannot_be_read_as_a_number(tf_config):
    with pytest.raises(ValueError, match="'host:port'"):
        tf_config({"cluster": {"worker": ["a:" + "1" * 5000]}, "task": FIRST})


@pytest.mark.parametrize("worker", ["a:1", None, [1], [None], {"x": "a:1"}, [["a:1"]], 3])
def test_jobs_that_are_no_lists_of_addresses(tf_config, worker):
    with pytest.raises(ValueError, match="TF_CONFIG"):
        tf_config({"cluster": {"worker": worker}, "task": FIRST})


def test_a_job_without_tasks(tf_config):
    with pytest.raises(ValueError, match="does not contain this task"):
        tf_config({"cluster": {"worker": []}, "task": FIRST})
