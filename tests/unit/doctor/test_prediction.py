"""Estimates of a step on many replicas, and the constants of the links between hosts."""

import json
import pathlib
import re
import socket

import pytest

from tf_adasum import doctor
from tf_adasum.aggregation import Scheme, cost_model
from tf_adasum.aggregation.rules import Adasum
from tf_adasum.doctor.prediction import link_findings, write_links
from tf_adasum.environment_variables import COST_MODEL, HOST_LINK

ARGUMENTS = ["--predict", "--replicas", "8", "--replicas-per-host", "4", "--model-mb", "16"]
PART = (16e6, 10)  # the one bucket of these gradients


def printed(capsys, *more):
    assert doctor.main([*ARGUMENTS, "--variables", "10", *more]) == 0
    return capsys.readouterr().out


def test_the_estimate_is_that_of_the_cost_model(monkeypatch, capsys):
    monkeypatch.setenv(HOST_LINK, "alpha=1e-4,beta=8e-9")
    text, hosts = printed(capsys, "--step-ms", "100"), cost_model.Hosts(4, 1e-4, 8e-9)
    assert "8 replicas on 2 hosts, 4 on each host" in text
    assert "alpha=1.0e-04 beta=8.0e-09 (TF_ADASUM_HOST_LINK)" in text
    for name, seconds in {
        "Adasum, [4, 2]": cost_model.UCX.seconds((4, 2), *PART, hosts),
        "Adasum, [8]": cost_model.UCX.seconds((8,), *PART, hosts),
        "mean, one flat ring": cost_model.UCX.ring_seconds(8, PART[0], hosts),
    }.items():
        step = 100 + 1000 * seconds
        cells = [f"{1000 * seconds:.1f} ms", f"{step:.1f} ms", f"{800 / step:.1f} x"]
        cells.append(f"{1e4 / step:.0f} %")
        assert re.search(rf"^{re.escape(name)} +" + " +".join(map(re.escape, cells)), text, re.M)


def test_links_are_written_to_a_file_for_estimates_and_for_the_strategy(
    tmp_path, monkeypatch, capsys
):
    path, host = str(tmp_path / "run=3.json"), socket.gethostname()
    found = link_findings(["a", "b"], [pair(0, 1, 5e-5, 1.25e8)])
    write_links(path, [host, host, "b"], found)
    (finding,) = found
    assert finding.level == "note" and finding.fix.endswith(f": TF_ADASUM_HOST_LINK={path}")
    assert json.loads(pathlib.Path(path).read_text())["hosts"] == sorted({host, "b"})

    text = printed(capsys, "--links", path)
    assert f"alpha=5.0e-05 beta=8.0e-09 ({path})" in text
    monkeypatch.setenv(HOST_LINK, path)
    assert Scheme.from_arguments(Adasum(), 8, replicas_per_host=4).hosts == cost_model.Hosts(
        4, 5e-5, 8e-9
    )
    monkeypatch.setattr(socket, "gethostname", lambda: "c")
    with pytest.raises(ValueError, match=r"on the hosts .*b.*, and this worker runs on c") as error:
        Scheme.from_arguments(Adasum(), 8, replicas_per_host=4)
    assert str(error.value).endswith("set TF_ADASUM_HOST_LINK=alpha=5.0e-05,beta=8.0e-09")


@pytest.mark.parametrize(
    ("path", "pairs", "level", "words"),
    [
        ("links.json", [], "warn", "was not written, because no link between two hosts"),
        ("missing/links.json", [(0, 1)], "FAIL", "cannot be written"),
    ],
)
def test_links_that_cannot_be_written_are_reported(tmp_path, path, pairs, level, words):
    found = link_findings(["a", "b"], [pair(*each) for each in pairs])
    write_links(str(tmp_path / path), ["a", "b"], found)
    assert found[-1].level == level and words in found[-1].text
    assert not (tmp_path / path).exists()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"hosts": ["a"], "alpha": -1, "beta": 1}',
        '{"hosts": ["a"], "alpha": true, "beta": 1}',
        '{"hosts": ["a"], "alpha": 1, "beta": 1' + "0" * 400 + "}",
        '{"hosts": "a", "alpha": 1, "beta": 1}',
    ],
    ids=lambda content: (content or "None")[:60],
)
def test_another_file_is_no_links_file(tmp_path, monkeypatch, content):
    path = tmp_path / "links.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv(HOST_LINK, str(path))
    with pytest.raises(ValueError, match=r"is not a file that `tf-adasum-doctor --links` has"):
        cost_model.Hosts.measured(4)


def test_a_cost_model_of_one_replica_per_host_includes_the_link(monkeypatch, capsys):
    monkeypatch.setenv(COST_MODEL, "alpha=1e-5,beta=1e-10,gamma=0")
    text = printed(capsys, "--replicas-per-host", "1")
    seconds = cost_model.measured().ring_seconds(8, PART[0])
    assert f"mean, one flat ring  {1000 * seconds:.1f} ms" in text and "links" not in text


def test_one_replica_exchanges_nothing(capsys):
    text = printed(capsys, "--replicas", "1", "--replicas-per-host", "1")
    assert "1 replica" in text and "0.0 ms" in text and "100 %" in text and "hosts" not in text


def test_a_ring_by_hand():
    model = cost_model.CostModel(1.0, 2.0, 0.0)
    for per_host, crossing in ((2, 1), (4, 0)):
        hosts = cost_model.Hosts(per_host, 3.0, 4.0)
        more = crossing * 6 * (3.0 + 4.0 * 25)
        assert model.ring_seconds(4, 100.0, hosts) == model.ring_seconds(4, 100.0) + more
    assert model.ring_seconds(4, 100.0) == 6 * (1.0 + 2.0 * 25)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "0"], "--replicas must be at least 1. Received: 0"),
        (["--replicas", "9"], "--replicas (9) must be a multiple of --replicas-per-host (4)"),
        (["--model-mb", "0"], "--model-mb must be positive"),
        (["--step-ms", "nan"], "--step-ms must be positive. Received: nan"),
        (["--json"], "--predict has no --json"),
        (["--links", "missing.json"], "'missing.json' is not a file that"),
    ],
)
def test_refuses_impossible_jobs(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main([*ARGUMENTS, *arguments])
    assert ended.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize("value", ["2", "1"])  # another value, and the default
def test_options_of_a_job_need_predict(capsys, value):
    with pytest.raises(SystemExit):
        doctor.main(["--replicas-per-host", value])
    assert "--replicas-per-host needs --predict" in capsys.readouterr().err


def pair(source, target, latency=1e-5, rate=1e9):
    return {"from": source, "to": target, "latency_seconds": latency, "bytes_per_second": rate}


def test_links_between_hosts_give_constants(monkeypatch):
    pairs = [pair(0, 1), pair(1, 0), pair(0, 2, 6e-5, 1.25e8), pair(2, 0, 6e-5, 1e8)]
    pairs.append({"from": 1, "to": 2, "error": "no answer"})
    (finding,) = link_findings(["a", "a", "b"], pairs)
    assert finding.text == "between hosts: 60 µs, and at least 125 MB/s; on one host: 10 µs"
    monkeypatch.setenv(*re.search(r"(TF_\w+)=(.*)", finding.fix).groups())
    hosts = cost_model.Hosts.measured(4)
    assert (hosts.alpha, hosts.beta) == pytest.approx((5e-5, 8e-9))
    assert link_findings(["a", "a", "a"], pairs) == []
    (finding,) = link_findings(["a", "b", "c"], pairs)
    assert "on one host" not in finding.text
