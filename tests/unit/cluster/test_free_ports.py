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
BELOW, ABOVE = range(10000, 32768), range(61000, 65536)


@pytest.fixture
def settings(tmp_path):
    """Write the files in which Linux gives its range of ports, and return the folder."""

    def write(port_range, reserved=""):
        (tmp_path / "ip_local_port_range").write_text(port_range)
        (tmp_path / "ip_local_reserved_ports").write_text(f"{reserved}\n")
        return str(tmp_path)

    return write


def until_any(settings):
    """The candidates before the system is asked."""
    return list(itertools.takewhile(bool, free_ports.candidates(settings)))


@pytest.mark.parametrize(
    ("port_range", "reserved", "expected"),
    [
        ("32768\t60999\n", "", [*BELOW, *ABOVE]),
        ("1024 64999", "65000,65100-65533,80", [*range(65001, 65100), 65534, 65535]),
        ("1024 65535", "", []),
        ("9000 65535", "", []),
        ("what", "", [*BELOW]),
        ("1 2 3", "", [*BELOW]),
    ],
    ids=["usual", "reserved", "all", "all from 9000", "text", "three numbers"],
)
def test_ports_that_the_system_gives_are_left_out(settings, port_range, reserved, expected):
    assert sorted(until_any(settings(port_range, reserved))) == expected


def test_without_settings_the_usual_range_is_left_out(tmp_path):
    assert sorted(until_any(str(tmp_path / "none"))) == [*BELOW]


def test_ports_above_come_first_and_two_launchers_begin_elsewhere(settings):
    folder = settings("32768 60999")
    assert sorted(until_any(folder)[: len(ABOVE)]) == [*ABOVE]
    assert len({next(free_ports.candidates(folder)) for _ in range(50)}) > 40


def bind(port):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_ports_are_distinct_held_and_free_afterwards():
    with free_ports.held(50) as found, free_ports.held(50) as others:
        assert len({*found, *others}) == 100
        for port in found:
            with pytest.raises(OSError):
                bind(port)
    for port in found:
        bind(port)


def test_a_port_in_use_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as other, free_ports.held(1) as (free,):
        used = other.getsockname()[1]
        with free_ports.held(2, iter([used, free, 0, 0])) as found:
            assert not {used, free} & {*found}


def test_what_cannot_be_held_is_free(monkeypatch):
    monkeypatch.setattr(ports, "can_be_held", lambda: False)
    with free_ports.held(1) as (port,):
        bind(port)


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


def errors_of(*command, **variables):
    environment = {**os.environ, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": "", **variables}
    ended = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60
    )
    return ended.stderr


@pytest.mark.parametrize("launches", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_no_launch_fails_beside_others_that_open_ports(tmp_path, launches):
    path = tmp_path / "worker.py"
    path.write_text(BARE_WORKER)
    launch = ("-S", "-m", "tf_adasum.launch", "-n", "2", str(path))
    with others_opening_ports(), multiprocessing.pool.ThreadPool(4) as side_by_side:
        assert side_by_side.starmap(errors_of, [launch] * launches) == [""] * launches


def test_such_a_worker_fails_if_its_port_is_taken():
    with socket.create_server(("", 0)) as other:
        config = {"cluster": {"worker": [f"a:{other.getsockname()[1]}"]}, "task": {"index": 0}}
        errors = errors_of("-c", BARE_WORKER, TF_CONFIG=json.dumps(config))
    assert "Address already in use" in errors
