"""Several workers under the doctor, each a thread without TensorFlow."""

import contextlib
import threading

import pytest
from support.pace import PACE
from support.rendezvous_tasks import cluster_of, run_in_threads

from tf_adasum.cluster.ports import free_ports
from tf_adasum.cluster.tasks import cluster_to_join
from tf_adasum.doctor import cluster_report
from tf_adasum.doctor.findings import FAIL, NOTE, OK, Finding
from tf_adasum.health import reachability

pytestmark = pytest.mark.version_independent

SECONDS = 30 * PACE
GOOD = Finding(OK, "keras", "3.15.1")
WRONG = Finding(FAIL, "self-test", "wrong", "rebuild")


def examined(
    monkeypatch, count, *, absent=(), look=None, timeout=SECONDS / 3, invited=False, exchange=list
):
    """Let workers examine each other; return their exit statuses, and the findings of all."""
    monkeypatch.setattr(cluster_report, "_SECONDS_FOR_WORKER_0", 0.1)
    monkeypatch.setattr(cluster_report, "PATIENCE_SECONDS", 1.0)
    shown, ranks = [], [rank for rank in range(count) if rank not in absent]
    show = cluster_report.show

    def noted(reports):
        if threading.current_thread().name == "0":
            shown.append(reports)
        return show(reports)

    monkeypatch.setattr(cluster_report, "show", noted)

    def work(place):
        rank = ranks[place]
        threading.current_thread().name = str(rank)
        cluster = cluster_of(*addresses, rank=rank)
        if invited:
            cluster = cluster_to_join(addresses[0], rank, count, "a test")
        with contextlib.suppress(SystemExit):
            find = (look or {}).get(rank, lambda: [GOOD])
            return cluster_report.examine(cluster, find, exchange, {}, timeout)

    with free_ports(count) as ports:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        outcomes, _ = run_in_threads(work, len(ranks), limit=SECONDS)
    codes = dict(zip(ranks, outcomes, strict=True))
    (reports,) = shown
    return {rank: code for rank, code in codes.items() if code is not None}, reports


def failures_of(report):
    return [each.text for each in report[1] if each.level == FAIL]


@pytest.mark.parametrize("invited", [False, True], ids=["cluster", "invited"])
def test_all_workers_are_shown_by_worker_0(monkeypatch, capsys, invited):
    codes, reports = examined(monkeypatch, 3, invited=invited)
    assert codes == {0: 0, 1: 0, 2: 0}
    for _, (links, *others) in reports:
        assert links.text.startswith("all other") and others == [GOOD]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("ok    worker 2 (127.0.0.1:") and len(lines) == 4


def test_a_worker_that_does_not_come_is_named(monkeypatch, capsys):
    codes, (own,) = examined(monkeypatch, 3, absent=[1], timeout=1.0)
    assert codes == {0: 1, 2: 1}
    (text,) = failures_of(own)
    assert "worker 1 (127.0.0.1:" in text and "did not start, or cannot be reached" in text
    assert capsys.readouterr().out.count("worker 1 (") == 2  # of workers 0 and 2


def test_different_versions_are_named(monkeypatch):
    def version(name, *others):
        is_odd = name == "keras" and threading.current_thread().name == "1"
        return "3.14.0" if is_odd else "3.15.1"

    monkeypatch.setattr(cluster_report, "installed_version", version)
    codes, (own,) = examined(monkeypatch, 2)
    assert codes == {0: 1, 1: 1}
    (text,) = failures_of(own)
    assert "same keras. Received: 3.15.1 on worker 0" in text and "3.14.0 on worker 1" in text


def test_what_fails_on_one_worker_fails_on_all(monkeypatch, capsys):
    codes, reports = examined(monkeypatch, 3, look={1: lambda: [GOOD, WRONG]})
    assert codes == {0: 1, 1: 1, 2: 1}
    assert list(map(failures_of, reports)) == [[], ["wrong"], []]
    text = capsys.readouterr().out
    assert "FAIL  worker 1 (" in text and "FAIL  self-test     wrong" in text and "rebuild" in text


def test_an_exchange_that_fails_on_one_worker_fails_on_all(monkeypatch):
    def exchange():
        return [WRONG] if threading.current_thread().name == "1" else [GOOD]

    codes, reports = examined(monkeypatch, 2, exchange=exchange)
    assert codes == {0: 1, 1: 1} and list(map(failures_of, reports)) == [[], ["wrong"]]
    assert reports[0][1][-1] == GOOD


def test_a_link_that_is_cut_is_named(monkeypatch):
    def errors(places):
        is_cut = threading.current_thread().name == "1"
        return ["no answer" if is_cut and place == places[-1] else "" for place in places]

    monkeypatch.setattr(reachability, "connect_errors", errors)
    codes, (_, other, _) = examined(monkeypatch, 3)
    assert codes == {0: 1, 1: 1, 2: 1}
    (text,) = failures_of(other)
    assert "cannot reach worker 2 (127.0.0.1:" in text and text.endswith("): no answer")


def test_a_worker_that_is_lost_is_named(monkeypatch):
    def vanish():
        raise SystemExit

    codes, reports = examined(monkeypatch, 3, look={1: vanish})
    assert codes == {0: 1, 2: 1}
    assert reports[1][0].startswith("worker 1 (")
    assert failures_of(reports[1]) == ["was lost: its connection was closed"]


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}])
def test_a_cluster_is_optional(environment):
    finding, cluster = cluster_report.find(environment)
    assert (finding.level, cluster) == (NOTE, None)


def test_the_cluster_in_the_environment():
    told = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
    finding, cluster = cluster_report.find(told)
    assert (finding.level, finding.text) == (OK, "worker 1 of 2, from torchrun (MASTER_ADDR)")
    assert (cluster.rank, cluster.num_workers) == (1, 2)
    for wrong in ({**told, "RANK": "2"}, {"TF_CONFIG": "[" * 100_000}):
        finding, cluster = cluster_report.find(wrong)
        assert (finding.level, cluster) == (FAIL, None)
