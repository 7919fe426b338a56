"""What the start says when TensorFlow's server has no port."""

import socket

import pytest
import tensorflow as tf
from support.joining_workers import configs_of
from support.rendezvous_tasks import SOON, run_in_threads
from support.worker_group import free_ports

from tf_adasum import errors, startup
from tf_adasum.cluster import rendezvous
from tf_adasum.cluster.tasks import Cluster

pytestmark = pytest.mark.version_independent


@pytest.fixture
def tasks():
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    return Cluster(addresses, ("worker 0", "worker 1"), 1)


def test_who_has_taken_the_port_of_tensorflow_s_server_is_named(tasks):
    port = tasks.host_and_port(1)[1]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError) as raised:
        with startup._saying_what_to_do(tasks):
            tf.distribute.Server({"worker": [tasks.addresses[1]]}, job_name="worker")
    assert f"worker 1 (127.0.0.1:{port}) is in use by another process" in str(raised.value)
    assert "Could not start gRPC server" in str(raised.value.__cause__.__context__)


def test_a_start_that_fails_may_be_made_again_by_joining_anew():
    configs = configs_of(2)

    def join():
        return run_in_threads(lambda rank: rendezvous.join(configs[rank], SOON, {}), 2)[0]

    clusters = join()
    for each in clusters:
        with startup._forgotten_if_it_fails(each):
            assert rendezvous.join(configs[each.rank], SOON, {}) is each
        with pytest.raises(ArithmeticError), startup._forgotten_if_it_fails(each):
            raise ArithmeticError
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
