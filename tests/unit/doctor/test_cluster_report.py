"""Several workers under the doctor, each a process or a thread without TensorFlow."""

import contextlib
import json
import socket
import threading
import time
import types

import pytest
from support.launching import eventually
from support.rendezvous_tasks import cluster_of, run_in_threads

from tf_adasum.cluster.ports import free_ports
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import RendezvousConfig
from tf_adasum.doctor import cluster_report, exchange_process, link_benchmark, probe_server, tables
from tf_adasum.doctor.findings import FAIL, OK, WARN, Finding
from tf_adasum.launch.processes import start_thread

pytestmark = pytest.mark.version_independent

SECONDS = 30


GOOD = {
    "devices": ["CPU:0", "CPU:1"],
    "exchanges": [{"bytes": 2**22, "seconds": [0.001, 0.002, 0.004], "over": "UCX (TCP)"}],
}


def examined(
    monkeypatch, count, *, results=None, absent=(), look=None, timeout=10.0, invited=False
):
    """Let so many workers examine each other; return the exit statuses and what worker 0 shows."""
    results = results or {str(rank): GOOD for rank in range(count)}

    @contextlib.contextmanager
    def exchange():  # in the place of the process that exchanges gradients
        yield types.SimpleNamespace(poll=lambda: results.get(threading.current_thread().name))

    monkeypatch.setattr(cluster_report, "ExchangeProcess", exchange)
    monkeypatch.setattr(cluster_report, "_SECONDS_FOR_WORKER_0", 0.1)
    monkeypatch.setattr(cluster_report, "_SECONDS_OF_SENDING", (0.02, 0.02))
    shown, ranks = [], [rank for rank in range(count) if rank not in absent]

    def show(examination):
        shown.append(examination)
        return int(not examination.usable)

    def work(place):
        rank = ranks[place]
        threading.current_thread().name = str(rank)
        cluster = cluster_of(*addresses, rank=rank)
        if invited:
            cluster = RendezvousConfig(addresses[0], rank, count, "a test")
        found = [Finding(OK, "keras", "3", facts={"keras": "3.15.1"})]
        find = (look or {}).get(rank, lambda: found)
        with contextlib.suppress(SystemExit):
            return cluster_report.examine(cluster, find, show, {}, timeout)

    with free_ports(count) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        outcomes, _ = run_in_threads(work, len(ranks), limit=SECONDS)
    codes = dict(zip(ranks, outcomes, strict=True))
    return {rank: code for rank, code in codes.items() if code is not None}, shown


@pytest.mark.parametrize("invited", [False, True], ids=["cluster", "invited"])
def test_all_pairs_are_measured_and_shown_by_worker_0(monkeypatch, invited):
    codes, (shown,) = examined(monkeypatch, 3, invited=invited)
    assert codes == {0: 0, 1: 0, 2: 0}
    assert shown.usable and not [each for each in shown.findings if each.level == FAIL]
    ways = {(each["from"], each["to"]) for each in shown.pairs}
    assert ways == {(i, j) for i in range(3) for j in range(3) if i != j}
    for each in shown.pairs:
        assert 0 < each["latency_seconds"] < 1 and each["bytes_per_second"] > 1e6
    assert shown.exchanges == GOOD["exchanges"]
    assert [each["keras"] for each in shown.workers] == ["3.15.1"] * 3
    json.dumps([shown.workers, shown.pairs])
    text = tables.lines_of(shown.workers, shown.pairs, shown.exchanges)
    assert "worker 2" in text and "2 CPU" in text and "4 MiB" in text and "2 ms" in text
    assert "with the strategy itself, over UCX (TCP):" in text


def test_a_worker_that_does_not_come_is_named(monkeypatch, capsys):
    codes, (shown,) = examined(monkeypatch, 3, absent=[1], timeout=1.0)
    assert codes == {0: 1, 2: 1} and not shown.usable
    (finding,) = shown.findings
    assert finding.level == FAIL and "worker 1 (127.0.0.1:" in finding.text
    assert "did not start, or cannot be reached" in finding.text
    assert "worker 1" in capsys.readouterr().err  # of worker 2


@pytest.mark.parametrize("failed", [0, 1])
def test_what_fails_on_one_worker_fails_on_all_and_stops_those_who_wait(monkeypatch, failed):
    monkeypatch.setattr(cluster_report, "_SECONDS_FOR_OTHER_ERRORS", 0.2)
    results = {str(failed): {"error": "ValueError: no such device"}}
    found = [
        Finding(OK, "keras", "3", facts={"keras": "3.14.0"}),
        Finding(FAIL, "self-test", "wrong", "rebuild"),
    ]
    codes, (shown,) = examined(monkeypatch, 3, results=results, look={1: lambda: found})
    assert codes == {0: 1, 1: 1, 2: 1} and not shown.usable
    of_exchange, differ = [str(each) for each in shown.findings if each.level == FAIL]
    assert f"exchange of gradients failed on worker {failed} (" in of_exchange
    assert of_exchange.endswith("): ValueError: no such device")
    assert "keras: 3.15.1 on worker 0, worker 2; 3.14.0 on worker 1" in differ
    assert [each["usable"] for each in shown.workers] == [True, False, True]
    text = tables.lines_of(shown.workers, shown.pairs, shown.exchanges)
    assert "FAIL  worker 1: self-test: wrong" in text


def test_a_worker_that_is_lost_is_named(monkeypatch):
    def vanish():
        raise SystemExit

    codes, (shown,) = examined(monkeypatch, 3, look={1: vanish})
    assert codes == {0: 1, 2: 1}
    (finding,) = [each for each in shown.findings if each.level == FAIL]
    assert "worker 1 (" in finding.text and "was lost" in finding.text
    assert [each["usable"] for each in shown.workers] == [True, False, True]
    assert shown.workers[1]["name"] == "worker 1" and shown.workers[1]["host"] == "?"


def test_an_exchange_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(cluster_report, "SECONDS_FOR_THE_EXCHANGE", 0.5)
    codes, (shown,) = examined(monkeypatch, 2, results={"0": GOOD})
    assert codes == {0: 1, 1: 1}
    (finding,) = [each for each in shown.findings if each.level == FAIL]
    assert "failed on worker 1 (" in finding.text and "not finished in" in finding.text


def test_a_pair_that_cannot_reach_each_other_is_named(monkeypatch):
    measure = probe_server.measure

    def cut(host, endpoint, secret, sending, seconds):
        if threading.current_thread().name == "1":  # worker 1 calls worker 2 alone
            raise TimeoutError("timed out")
        return measure(host, endpoint, secret, sending, seconds)

    monkeypatch.setattr(probe_server, "measure", cut)
    codes, (shown,) = examined(monkeypatch, 3)
    assert codes == {0: 0, 1: 0, 2: 0}
    (finding,) = [each for each in shown.findings if each.subject == "pair"]
    assert finding.level == WARN
    assert "worker 1 (" in finding.text and "its connection to worker 2 (" in finding.text
    assert "timed out" in finding.text
    assert "NO ANSWER" in tables.lines_of(shown.workers, shown.pairs, shown.exchanges)


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        ({"bytes_per_second": 1e7}, "worker 2 (h2:1) to worker 3 (h3:1): 10 MB/s"),
        ({"latency_seconds": 5e-3}, "worker 2 (h2:1) to worker 3 (h3:1): 5e+03 µs of latency"),
        ({"bytes_per_second": 5e8, "latency_seconds": 1e-4}, None),
    ],
)
def test_a_slow_pair_stands_out(odd, text):
    lead = object.__new__(cluster_report._Coordinator)
    ranks = range(4)
    lead._cluster = cluster_of(*(f"h{rank}:1" for rank in ranks))
    usual = {"latency_seconds": 5e-5, "bytes_per_second": 1e9}
    measured = [{"from": i, "to": j, **usual} for i in ranks for j in ranks if i != j]
    measured[8] |= odd
    assert [each.text[: len(text or "")] for each in lead._slow(measured)] == [text] * bool(text)
    assert [each for each in measured if each.get("slow")] == [measured[8]] * bool(text)


def test_many_workers_are_measured_at_few_distances():
    found = cluster_report.pairs_of(list(range(64)))
    assert len(found) == sum(64 - distance for distance in (1, 2, 4, 8, 16, 32))
    assert len(cluster_report.pairs_of(list(range(48)))) == 48 * 47 // 2


def test_a_slow_link_is_measured_as_it_is():
    """What has arrived counts, and not what was handed over: the system takes more at once."""
    own, near = socket.socketpair()
    far, other = socket.socketpair()
    for end in (own, other):
        end.settimeout(SECONDS)

    def forward():  # 4 MB in a second, there; at once, back
        piece = b""
        while piece[:1] != b"l":  # the first byte of a chunk, 1/4 MiB, says whether it is the last
            piece = near.recv(2**18, socket.MSG_WAITALL)
            time.sleep(len(piece) / 4e6)
            far.sendall(piece)
        near.sendall(far.recv(1))

    with own, near, far, other:
        threads = [start_thread(link_benchmark._take, other), start_thread(forward)]
        rate = link_benchmark._send(own, 0.5)
        for thread in threads:
            thread.join(SECONDS)
    assert 1e6 < rate < 4.1e6


def test_unauthenticated_clients_get_no_answer():
    secret = Secret(b"key")
    with probe_server.ProbeServer("127.0.0.1", 2, secret) as own:
        port, token = own.endpoint
        for endpoint, wrong in (([port, "wrong"], secret), ([port, token], Secret())):
            with pytest.raises(ConnectionError, match="another program uses this port"):
                probe_server.measure("127.0.0.1", endpoint, wrong, 0.01, 5.0)
        measured = probe_server.measure("127.0.0.1", [port, token], secret, 0.01, 5.0)
        assert measured["latency_seconds"] > 0
        assert own.waiting([1], 0.01) == {}


def test_an_exchange_that_crashes_says_so(monkeypatch):
    monkeypatch.setattr(exchange_process, "__package__", "no_such_package")
    with exchange_process.ExchangeProcess() as process:
        eventually(lambda: process.poll() is not None)
        error = process.poll()["error"]
    assert "exit status 1" in error and "no_such_package" in error
