"""Several workers under the doctor, each a process or a thread without TensorFlow."""

import contextlib
import json
import threading
import time

import pytest
from support.rendezvous_tasks import cluster_of, run_in_threads

from tf_adasum.cluster.ports import free_ports
from tf_adasum.cluster.tasks import cluster_to_join
from tf_adasum.doctor import cluster_report, exchange, tables
from tf_adasum.doctor.findings import FAIL, OK, Finding

pytestmark = pytest.mark.version_independent

SECONDS = 30


GOOD = {
    "devices": ["CPU:0", "CPU:1"],
    "exchange": {"bytes": 2**22, "seconds": [0.001, 0.002, 0.004], "over": "UCX (TCP)"},
}


def examined(
    monkeypatch, count, *, results=None, absent=(), look=None, timeout=10.0, invited=False
):
    """Let so many workers examine each other; return the exit statuses and what worker 0 shows."""
    results = results or {str(rank): GOOD for rank in range(count)}

    def exchanged(is_stopped):  # in the place of the process that exchanges gradients
        begun = time.monotonic()
        while not is_stopped() and time.monotonic() < begun + exchange.SECONDS:
            found = results.get(threading.current_thread().name)
            if found and time.monotonic() > begun + 0.3:  # the workers have connected
                return found
            time.sleep(0.01)
        return {} if is_stopped() else {"error": exchange.LATE}

    monkeypatch.setattr(exchange, "run", exchanged)
    monkeypatch.setattr(cluster_report, "_SECONDS_FOR_WORKER_0", 0.1)
    shown, ranks = [], [rank for rank in range(count) if rank not in absent]

    def show(examination):
        shown.append(examination)
        return int(not examination.usable)

    def work(place):
        rank = ranks[place]
        threading.current_thread().name = str(rank)
        cluster = cluster_of(*addresses, rank=rank)
        if invited:
            cluster = cluster_to_join(addresses[0], rank, count, "a test")
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
def test_the_exchange_and_all_workers_are_shown_by_worker_0(monkeypatch, invited):
    codes, (shown,) = examined(monkeypatch, 3, invited=invited)
    assert codes == {0: 0, 1: 0, 2: 0}
    assert shown.usable and shown.findings == []
    assert shown.exchange == GOOD["exchange"]
    assert [each["keras"] for each in shown.workers] == ["3.15.1"] * 3
    json.dumps([shown.workers, shown.exchange])
    text = tables.lines_of(shown.workers, shown.exchange)
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
    monkeypatch.setattr(cluster_report, "LEASE_SECONDS", 0.2)
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
    text = tables.lines_of(shown.workers, shown.exchange)
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
    monkeypatch.setattr(exchange, "SECONDS", 0.5)
    codes, (shown,) = examined(monkeypatch, 2, results={"0": GOOD})
    assert codes == {0: 1, 1: 1}
    (finding,) = [each for each in shown.findings if each.level == FAIL]
    assert "failed on worker 1 (" in finding.text and "not finished in" in finding.text


def test_an_exchange_that_crashes_says_so(monkeypatch):
    monkeypatch.setattr(exchange, "_MODULE", "no_such_package.exchange")
    error = exchange.run(lambda: False)["error"]
    assert "exit status 1" in error and "no_such_package" in error


def test_an_exchange_is_ended_early_or_if_it_takes_too_long(monkeypatch):
    assert exchange.run(lambda: True) == {}
    monkeypatch.setattr(exchange, "SECONDS", 0.0)
    assert exchange.run(lambda: False) == {"error": exchange.LATE}
