"""The cluster that a resolver gives, and what is reported where it is wrong."""

import pytest
import tensorflow as tf
from support.rendezvous_tasks import cluster_of

from tf_adasum.cluster.resolver import resolve

SimpleClusterResolver = tf.distribute.cluster_resolver.SimpleClusterResolver

TWO = {"worker": ["a:1", "b:2"]}


def simple(spec, **task):
    return SimpleClusterResolver(tf.train.ClusterSpec(spec), **task)


def test_without_tf_config_the_process_trains_alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver, cluster = resolve()
    assert cluster is None
    assert isinstance(resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver)
    assert not resolver.cluster_spec().jobs


def test_a_resolver_comes_before_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    given = simple(TWO, task_type="worker", task_id=1)
    cluster = cluster_of("a:1", "b:2", rank=1)
    assert resolve(given) == (given, cluster)
    assert resolve(simple({}))[1] is None


# TensorFlow's sparse form gives indices to addresses. A worker that is not listed cannot train.
WITH_GAPS = {"worker": {1: "a:1", 3: "b:2"}}


@pytest.mark.parametrize(
    ("jobs", "task", "message"),
    [
        (TWO, {}, "cluster_resolver gives a cluster but not.*task_type=None, task_id=None"),
        (TWO, {"task_type": "worker"}, "task_type='worker', task_id=None"),
        (TWO, {"task_id": 0}, "task_type=None, task_id=0"),
        (TWO, {"task_type": "ps", "task_id": 0}, "task type 'ps' from cluster_resolver"),
        (WITH_GAPS, {"task_type": "worker", "task_id": 1}, "cluster_resolver must list every task"),
    ],
)
def test_a_resolver_that_does_not_place_this_task(jobs, task, message):
    with pytest.raises(ValueError, match=message):
        resolve(simple(jobs, **task))


@pytest.mark.parametrize("wrong", [TWO, SimpleClusterResolver, False], ids=str)
def test_something_that_is_no_resolver(wrong):
    with pytest.raises(ValueError, match=r"`cluster_resolver` must be .*: cluster_resolver="):
        resolve(wrong)


def test_workers_join_as_the_environment_configures(monkeypatch):
    followed, cluster = [], cluster_of("a:5", "b:6", rank=1)

    def join(config, timeout, environment):
        followed.append((config.coordinator, config.rank, timeout))
        return cluster

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("tf_adasum.cluster.rendezvous.join", join)
    for name, value in (("COORDINATOR", "a:1"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(f"TF_ADASUM_{name}", value)
    resolver, found = resolve(timeout=7.0)
    assert followed == [("a:1", 1, 7.0)] and found == cluster
    assert resolver.cluster_spec().as_dict() == {"worker": ["a:5", "b:6"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
