"""The cluster that TF_CONFIG gives, and what is reported where it is wrong."""

import json

import pytest

from tf_adasum.cluster.detection import find
from tf_adasum.cluster.resolver import resolve
from tf_adasum.cluster.tasks import Cluster

TWO = {"worker": ["a:1", "b:2"]}
WITH_CHIEF = {"worker": ["a:1", "[::1]:2"], "chief": ["c:65535"]}
FIRST = {"type": "worker", "index": 0}


def of(jobs, task_type="worker", index=0):
    return {"cluster": jobs, "task": {"type": task_type, "index": index}}


@pytest.fixture
def tf_config(monkeypatch):
    """Resolves the cluster with this TF_CONFIG: text, or something to write as JSON."""

    def resolved(config):
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)
        cluster = resolve()[1]
        assert find({"TF_CONFIG": text}) == cluster, "the doctor reads it as the strategy"
        return cluster

    return resolved


@pytest.mark.parametrize("config", ["", "{}", {"cluster": {}}, {"task": FIRST}, of({})])
def test_tf_config_without_a_cluster(tf_config, config):
    assert tf_config(config) is None


@pytest.mark.parametrize(
    ("config", "rank"),
    [
        (of(TWO), 0),
        (of(TWO, index=1), 1),
        (of(TWO, index="1"), 1),
        (of({**TWO, "ps": ["p:9"], "evaluator": ["e:8"]}), 0),
    ],
)
def test_workers(tf_config, config, rank):
    assert tf_config(config) == Cluster(("a:1", "b:2"), ("worker 0", "worker 1"), rank)


@pytest.mark.parametrize(
    ("task", "rank"), [(("chief", 0), 0), (("worker", 0), 1), (("worker", 1), 2)]
)
def test_the_chief_comes_first(tf_config, task, rank):
    names = ("chief 0", "worker 0", "worker 1")
    assert tf_config(of(WITH_CHIEF, *task)) == Cluster(("c:65535", "a:1", "[::1]:2"), names, rank)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"TF_CONFIG is not valid JSON \(.*\). Received: '\{'"),
        ("[" * 99_999, "TF_CONFIG is not valid JSON"),
        ("[1]", r"must look like .*Received: '\[1\]'"),
        ({"cluster": ["a:1"], "task": FIRST}, "must look like"),
        (of(None), "must look like"),
        *((of({"worker": wrong}), "must look like") for wrong in ("a:1", None, [None], {"x": "y"})),
        ({"cluster": TWO}, 'no "task" with a "type".*"task": {"type": "worker", "index": 0}'),
        ({"cluster": TWO, "task": "worker"}, 'no "task" with a "type"'),
        ({"cluster": TWO, "task": {"type": "worker"}}, 'no "task" with a "type"'),
        ({"cluster": TWO, "task": {"index": 0}}, 'no "task" with a "type"'),
        *((of(TWO, index=wrong), 'a whole number as "index"') for wrong in ("one", 0.5)),
        (of(TWO, index=2), "cluster has worker 0, worker 1. Received: worker 2"),
        (of(TWO, index=-1), "Received: worker -1"),
        (of(TWO, "chief"), "Received: chief 0"),
        (of({**TWO, "ps": ["p:3"]}, "ps"), "Only 'chief' and 'worker'.* type 'ps' from TF_CONFIG"),
        (of(TWO, "Worker"), "task type 'Worker'"),
        (of(TWO, None), "task type"),
        (of({"worker": []}), "does not contain this task: the cluster has no task that trains"),
        (of({"worker": ["a:1", "a:1"]}), "TF_CONFIG gives one address to two tasks.*'a:1'"),
        (of({"chief": ["a:1"], "worker": ["b:1", "a:1"]}), "one address to two tasks"),
        (of({"worker": ["b:1", "a"]}), "TF_CONFIG must give each .*IPv6 address. Received: 'a'"),
        (of({"worker": ["b:1", "a:" + "1" * 5000]}), "'host:port'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(tf_config, config, message):
    with pytest.raises(ValueError, match=message):
        tf_config(config)
