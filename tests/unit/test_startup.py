"""What the start says when TensorFlow's server has no port."""

import socket
import types
from unittest import mock

import pytest
import tensorflow as tf
from support.joining_workers import configs_of
from support.rendezvous_tasks import SOON, run_in_threads
from support.worker_group import free_ports

from tf_adasum import errors, startup
from tf_adasum.cluster import rendezvous
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health.monitor import NullMonitor

pytestmark = pytest.mark.version_independent


ARGUMENTS = (
    *("settings", "options", "start_timeout", "timeout", "devices"),
    *("cross_device_ops", "transport"),
)


def running():
    """The failure detector of a worker that has started, which detects nothing."""
    call, status = NullMonitor.call, types.SimpleNamespace(state="running")
    return types.SimpleNamespace(call=call, status=status, collective_timeout=SOON)


@pytest.fixture
def tasks():
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    return Cluster(addresses, ("worker 0", "worker 1"), 1)


def test_who_has_taken_the_port_of_tensorflow_s_server_is_named(tasks):
    port = tasks.host_and_port(1)[1]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError) as raised:
        with startup._starting_tensorflow(tasks, SOON, running()):
            tf.distribute.Server({"worker": [tasks.addresses[1]]}, job_name="worker")
    assert f"worker 1 (127.0.0.1:{port}) is in use by another process" in str(raised.value)
    assert "Could not start gRPC server" in str(raised.value.__cause__.__context__)


def test_a_start_that_fails_may_be_made_again_by_joining_anew(monkeypatch):
    configs = configs_of(2)

    def join():
        return run_in_threads(lambda rank: rendezvous.join(configs[rank], SOON, {}), 2)[0]

    def fail_to_start(cluster):
        with pytest.raises(ArithmeticError):
            startup.start(None, None, cluster, **dict.fromkeys(ARGUMENTS))

    clusters, fails = join(), mock.Mock(side_effect=ArithmeticError)
    monkeypatch.setattr(startup.tensorflow_compat, "GradientAggregatingExtended", fails)
    monkeypatch.setattr(startup.monitor, "begin", lambda *arguments: running())
    for each in clusters:  # all have met, and only this strategy fails
        fail_to_start(each)
        assert rendezvous.join(configs[each.rank], SOON, {}) is each
    monkeypatch.setattr(startup.monitor, "begin", fails)
    for each in clusters:
        fail_to_start(each)
    again = join()
    for each in again:
        rendezvous.forget(each)
    assert again[0].addresses != clusters[0].addresses


def test_the_port_is_held_until_tensorflow_has_it(tasks):
    port = tasks.host_and_port(1)[1]
    with startup._held_port(tasks), socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)), startup._held_port(tasks):
        pass  # by the first strategy of this process


def test_a_line_is_said_once(capfd):
    for _ in range(2):
        errors.hint("one line, said by this test")
    assert capfd.readouterr() == ("", "tf_adasum: one line, said by this test\n")
