"""The cluster that a resolver gives, and what is said where it is wrong."""

import pytest
import tensorflow as tf

from tf_adasum.cluster.resolver import resolve
from tf_adasum.cluster.tasks import Cluster

SimpleClusterResolver = tf.distribute.cluster_resolver.SimpleClusterResolver

TWO = {"worker": ["a:1", "b:2"]}


def simple(spec, **task):
    return resolve(SimpleClusterResolver(tf.train.ClusterSpec(spec), **task))[1]


def test_without_tf_config_the_process_trains_alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver, cluster, _ = resolve()
    assert cluster is None
    assert isinstance(resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver)
    assert not resolver.cluster_spec().jobs


def test_a_resolver_comes_before_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    given = SimpleClusterResolver(tf.train.ClusterSpec(TWO), task_type="worker", task_id=1)
    resolver, cluster, source = resolve(given)
    assert resolver is given and source == "SimpleClusterResolver"
    assert cluster == Cluster(("a:1", "b:2"), ("worker 0", "worker 1"), 1)


def test_a_resolver_without_a_cluster():
    assert simple({}) is None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({}, "cluster_resolver gives a cluster but not.*task_type=None, task_id=None"),
        ({"task_type": "worker"}, "task_type='worker', task_id=None"),
        ({"task_id": 0}, "task_type=None, task_id=0"),
        ({"task_type": "worker", "task_id": 2}, "cluster_resolver does not contain this task"),
        ({"task_type": "ps", "task_id": 0}, "task type 'ps' from cluster_resolver"),
    ],
)
def test_a_resolver_that_does_not_place_this_task(task, message):
    with pytest.raises(ValueError, match=message):
        simple({**TWO, "ps": ["p:3"]}, **task)


def test_a_cluster_with_gaps():
    # TensorFlow's sparse form: indices to addresses. A worker that is not listed cannot train.
    with pytest.raises(ValueError, match="cluster_resolver"):
        simple({"worker": {1: "a:1", 3: "b:2"}}, task_type="worker", task_id=1)


@pytest.mark.parametrize(
    "wrong", ["worker:0", TWO, tf.train.ClusterSpec(TWO), SimpleClusterResolver, 1, False]
)
def test_something_that_is_no_resolver(wrong):
    with pytest.raises(
        ValueError, match=r"`cluster_resolver` must be .*Received: cluster_resolver="
    ):
        resolve(wrong)


def test_an_invitation_is_followed(monkeypatch):
    followed = []

    def join(invitation, timeout, environment):
        followed.append((invitation.coordinator, invitation.rank, timeout))
        return Cluster(("a:5", "b:6"), ("worker 0", "worker 1"), invitation.rank)

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("tf_adasum.cluster.joining.join", join)
    for name, value in (("COORDINATOR", "a:1"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(f"TF_ADASUM_{name}", value)
    resolver, cluster, source = resolve(timeout=7.0)
    assert followed == [("a:1", 1, 7.0)]
    assert cluster == Cluster(("a:5", "b:6"), ("worker 0", "worker 1"), 1)
    assert "TF_ADASUM_COORDINATOR" in source
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:5", "b:6"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert resolve()[1] is None and len(followed) == 1
