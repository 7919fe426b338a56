"""The ports of local workers: which ones, and that nobody else gets them."""

import itertools
import json
import multiprocessing.pool
import os
import socket
import subprocess
import sys

import pytest
from support.port_opener import others_opening_ports

import tf_adasum
from tf_adasum.cluster import free_ports, ports

ROOT = os.path.dirname(os.path.dirname(tf_adasum.__file__))


@pytest.fixture
def settings(tmp_path):
    """Write what Linux says of its ports, and return the folder."""

    def write(port_range, reserved=""):
        (tmp_path / "ip_local_port_range").write_text(port_range)
        (tmp_path / "ip_local_reserved_ports").write_text(f"{reserved}\n")
        return str(tmp_path)

    return write


def until_any(settings):
    """The candidates before the system is asked."""
    return list(itertools.takewhile(bool, free_ports.candidates(settings)))


def test_ports_lie_above_and_then_below_those_that_the_system_gives(settings):
    found = until_any(settings("32768\t60999\n"))
    above, below = range(61000, 65536), range(10000, 32768)
    assert sorted(found[: len(above)]) == list(above)
    assert sorted(found[len(above) :]) == list(below)


def test_reserved_ports_are_left_out(settings):
    found = until_any(settings("1024 64999", "65000,65100-65533,80"))
    assert sorted(found) == [*range(65001, 65100), 65534, 65535]


@pytest.mark.parametrize("port_range", ["1024 65535", "0 65535", "9000 65535"])
def test_where_the_system_gives_all_it_is_asked(settings, port_range):
    assert until_any(settings(port_range)) == []


@pytest.mark.parametrize("text", ["", "what", "1 2 3"])
def test_where_the_system_does_not_say_the_usual_range_is_left_out(settings, text, tmp_path):
    assert sorted(until_any(settings(text))) == list(range(10000, 32768))
    assert sorted(until_any(str(tmp_path / "none"))) == list(range(10000, 32768))


def test_two_launchers_seldom_begin_at_the_same_port(settings):
    folder = settings("32768 60999")
    assert len({next(free_ports.candidates(folder)) for _ in range(50)}) > 40


def test_ports_are_distinct_held_and_free_afterwards():
    with free_ports.held(50) as found, free_ports.held(50) as others:
        assert len({*found, *others}) == 100
        for port in found:
            with pytest.raises(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
    for port in found:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_a_port_in_use_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as other, free_ports.held(1) as (free,):
        used = other.getsockname()[1]
        with free_ports.held(2, iter([used, free, 0, 0])) as found:
            assert not {used, free} & {*found}


def test_further_ports_are_others():
    candidates = free_ports.candidates()
    seen = []
    for _ in range(20):
        with free_ports.held(3, candidates) as found:
            seen += found
    assert len(set(seen)) == 60


def test_what_cannot_be_held_is_free(monkeypatch):
    monkeypatch.setattr(ports, "can_be_held", lambda: False)
    with free_ports.held(2) as found:
        for port in found:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))


# Waits as long as TensorFlow may take to be imported, scaled down, then listens on its port as
# TensorFlow's server does.
BARE_WORKER = """
import json, os, random, socket, time
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["worker"][config["task"]["index"]].rpartition(":")[2])
time.sleep(random.uniform(0, 0.3))
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("::", port))
listener.listen()
"""


@pytest.mark.parametrize("launches", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_no_launch_fails_beside_others_that_open_ports(tmp_path, launches):
    path = tmp_path / "worker.py"
    path.write_text(BARE_WORKER)
    command = [sys.executable, "-S", "-m", "tf_adasum.launch", "-n", "2", str(path)]
    environment = {**os.environ, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}

    def start(_):
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60
        ).stderr

    with others_opening_ports(), multiprocessing.pool.ThreadPool(4) as side_by_side:
        assert side_by_side.map(start, range(launches)) == [""] * launches


def test_such_a_worker_fails_if_its_port_is_taken(tmp_path):
    with socket.create_server(("", 0)) as other:
        config = {"cluster": {"worker": [f"a:{other.getsockname()[1]}"]}, "task": {"index": 0}}
        ended = subprocess.run(
            [sys.executable, "-c", BARE_WORKER],
            env={**os.environ, "TF_CONFIG": json.dumps(config)},
            capture_output=True,
            text=True,
        )
    assert "Address already in use" in ended.stderr
