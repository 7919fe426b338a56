"""Joining: workers that know worker 0's address find each other, or raise an error."""

import dataclasses
import errno
import os
import socket
import sys
import threading
import time
from unittest import mock

import pytest
from support.joining_workers import assert_together, configs_of, impatient, run  # noqa: F401 - a fixture
from support.launching import output_of
from support.pace import PACE
from support.rendezvous_tasks import SETTINGS, SOON, needs_ipv6, run_in_threads

import tf_adasum
from tf_adasum.cluster import addresses, rendezvous, session
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.store import StoreServer
from tf_adasum.cluster.tasks import cluster_to_join
from tf_adasum.environment_variables import INTERFACE, START_TIMEOUT

ROOT = os.path.dirname(os.path.dirname(tf_adasum.__file__))
pytestmark = pytest.mark.usefixtures("impatient")


def hosts_of(found):
    return [addresses.split(each)[0] for each in found]


# ---- workers that find each other ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "host"),
    [
        (5, "127.0.0.1"),
        (3, "localhost"),
        (3, "127.0.1.1"),
        pytest.param(3, "::1", marks=needs_ipv6),
    ],
)
def test_everybody_gets_the_same_list_and_then_meets(count, host):
    def met(made):
        made.meet(SETTINGS, {"of": made.cluster.rank}, SOON)
        assert made.payload == {"of": 0}
        return made.cluster

    outcomes, _ = run(configs_of(count, f"[{host}]" if ":" in host else host), then=met)
    assert hosts_of(assert_together(outcomes, count)) == [host] * count
    assert outcomes[0].names == tuple(f"worker {rank}" for rank in range(count))


def test_a_worker_may_set_its_address():
    environments = [{}, {INTERFACE: "127.0.0.2"}, {INTERFACE: "lo"}]
    outcomes, _ = run(configs_of(3), environments=environments)
    assert hosts_of(assert_together(outcomes, 3)) == ["127.0.0.1", "127.0.0.2", "127.0.0.1"]


def test_ports_are_held_until_the_cluster_is_forgotten():
    configs = configs_of(2)
    found, _ = run_in_threads(lambda rank: rendezvous.join(configs[rank], SOON, {}), 2)
    for rank, cluster in enumerate(found):
        where = cluster.host_and_port(rank)
        try:
            assert rendezvous.join(configs[rank], SOON, {}) is cluster
            with pytest.raises(OSError), socket.socket() as other:
                other.bind(where)
        finally:
            rendezvous.forget(cluster)
        with socket.socket() as other:
            other.bind(where)


# ---- workers that do not find each other ---------------------------------------------------------


def assert_all_raise(outcomes, kind, *parts):
    for outcome in outcomes:
        assert type(outcome) is kind, outcome
        for part in parts:
            assert part in str(outcome)


REFUSED = os.strerror(errno.ECONNREFUSED)


def test_worker_0_that_is_not_there_is_named_with_what_was_tried(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "PATIENCE_SECONDS", 0.3)
    port = configs_of(1)[0].coordinator.rpartition(":")[2]
    resolve = socket.getaddrinfo

    def both(host, *arguments, **options):
        hosts = ["127.0.0.2", "127.0.0.1"] if host == "first" else [host]
        return [found for each in hosts for found in resolve(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    configs = cluster_to_join(f"first:{port}", 1, 2, "a test")
    ((outcome,), (waited,)) = run([configs], timeout=0.5)
    tried = f"cannot reach worker 0 (first:{port}): 127.0.0.2: {REFUSED}, 127.0.0.1: {REFUSED}."
    assert_all_raise([outcome], TimeoutError, tried, "0.5 s, but worker 0", START_TIMEOUT)
    assert 0.5 <= waited < 5 * PACE
    waiting = f"tf_adasum: waiting for worker 0 (first:{port}) (0 of 0.5 s). worker 1 {tried}"
    assert capsys.readouterr().err.splitlines()[0] == waiting


def test_a_name_that_does_not_resolve_is_no_end(monkeypatch):
    """The names of a cluster's services appear when their processes have started."""
    configs = configs_of(2, "service")
    resolve, since = socket.getaddrinfo, time.monotonic()

    def late(host, *arguments, **options):
        if host == "service" and time.monotonic() < since + 0.7:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("127.0.0.1" if host == "service" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", late)
    assert_together(run(configs)[0], 2)
    since = time.monotonic() + 60
    why = f"({configs[0].coordinator}): service: Name or service not known."
    assert_all_raise(run(configs[1:], timeout=0.5)[0], TimeoutError, why)


def test_a_look_up_that_takes_very_long_does_not_outlast_the_timeout(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(5 * PACE) or [])
    ((outcome,), (waited,)) = run(configs_of(2)[1:], timeout=0.5)
    assert isinstance(outcome, TimeoutError) and waited < 3 * PACE


# ---- workers that are not alike ------------------------------------------------------------------


def test_a_worker_whose_rank_has_joined_raises_an_error_and_disturbs_nobody():
    configs = configs_of(2)
    outcomes, _ = run([*configs, *configs], delays=[0, 0, 1, 1])
    found = assert_together(outcomes[:2], 2)
    again = "If this worker was restarted after all had joined, restart all workers."
    two = f"Two workers have the rank 1: one at {found[1]} and one at 127.0.0.1:"
    assert_all_raise(outcomes[3:], ValueError, two, again)
    assert_all_raise(outcomes[2:3], OSError, "the same task started twice", "TFA-205")


def test_two_workers_0_on_two_machines_are_an_error_on_all(monkeypatch):
    """The others reach one of them, and so does the other worker 0."""
    configs = configs_of(3)
    port = addresses.split(configs[0].coordinator)[1]
    elsewhere = dataclasses.replace(configs[0], coordinator=f"127.0.0.3:{port}")
    call = session.call

    def call_first(_, *rest, **options):
        return call(configs[0].coordinator, *rest, **options)

    monkeypatch.setattr(session, "call", call_first)
    outcomes, seconds = run([*configs, elsewhere], delays=[0, 0, 1, 0])
    assert_all_raise(outcomes, ValueError, "Two workers have the rank 0")
    assert max(seconds) < SOON


@pytest.mark.parametrize("value", ["eth77", "192.0.2.1"])
def test_an_interface_that_is_none(value):
    outcomes, _ = run(configs_of(2)[:1], environments=[{INTERFACE: value}])
    assert_all_raise(outcomes, ValueError, f"{INTERFACE}={value!r}", "lo")


# ---- answers that make no sense ------------------------------------------------------------------


@pytest.mark.parametrize(
    "response",
    [
        {"missing": [None, "a", 2]},
        {"addresses": 3},
        {"addresses": ["127.0.0.1:1"]},
        {"addresses": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]},
        {"addresses": ["a", "b", "c"], "missing": 7},
        {"result": {"wrong": {"a": "b"}}},
        {"result": ["response"]},
        {"result": None},
    ],
)
def test_responses_that_make_no_sense_end_no_worker(response):
    configs = configs_of(3)
    listener = socket.create_server(addresses.split(configs[0].coordinator))
    leader = mock.Mock(decide=lambda now: response)  # which answers each worker with the same keys
    server = StoreServer(listener, Secret(), threading.Lock(), leader)
    ((outcome,), _) = run(configs[1:2], timeout=0.5)
    server.close(0.0)
    assert type(outcome) is TimeoutError and "but other workers did not" in str(outcome), outcome


# ---- many workers --------------------------------------------------------------------------------

PROGRAM = os.path.join(ROOT, "tests", "support", "many_processes.py")


@pytest.mark.parametrize("way", ["joined", "listed"])
@pytest.mark.parametrize(
    "count", [32, pytest.param(256, marks=[pytest.mark.slow, pytest.mark.further])]
)
def test_many_processes_find_each_other(count, way):
    command = [sys.executable, "-S", PROGRAM, count, way]
    printed = output_of(*command, env={**os.environ, "PYTHONPATH": ROOT}, timeout=240 * PACE)
    failed, seconds = printed.split()[-2:]
    assert failed == "0", printed
    assert float(seconds) < 60 * PACE
