"""Who uses a port, which ports workers get, and that nobody else gets them.

`socket.create_server` listens as TensorFlow's server does: with SO_REUSEADDR.
"""

import errno
import itertools
import re
import socket
import subprocess
import sys

import pytest

from tf_adasum.cluster import ports

BELOW, ABOVE = range(10000, 32768), range(61000, 65536)


def refused():
    return pytest.raises(OSError, match=rf"\[Errno {errno.EADDRINUSE}\]")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_held_port_is_for_one_server(host):
    with ports.hold(0) as held:
        port = held.getsockname()[1]
        with refused(), socket.socket() as other:
            other.bind((host, port))
        with refused():
            ports.hold(port)
        with socket.create_server((host, port)), refused():
            socket.create_server((host, port))
        with socket.create_server((host, port)) as again:
            socket.create_connection(("127.0.0.1", port)).close()
            again.accept()[0].close()
    assert ports.can_be_held()


def test_a_port_that_another_holds_can_be_held_too():
    with ports.hold(0) as held:
        port = held.getsockname()[1]
        with ports.hold(port, shared=True), socket.create_server(("127.0.0.1", port)):
            pass
    with ports.hold(port, shared=True), refused(), socket.socket() as other:
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_in_use_cannot_be_held(shared):
    with socket.create_server(("127.0.0.1", 0)) as other, refused():
        ports.hold(other.getsockname()[1], shared=shared)


def test_the_user_of_a_port_is_named(monkeypatch):
    serve = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
        port = int(re.search(r"port (\d+)", process.stdout.readline())[1])
        with open(f"/proc/{process.pid}/comm") as name:
            assert ports.user_of(port) == f"{name.read().strip()} (pid {process.pid})"
        # The process that listens is named, not the one that is connected.
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert f"pid {process.pid}" in ports.user_of(port)
            assert ports.user_of(connection.getsockname()[1]) == "this process"
            monkeypatch.setattr(ports, "_TABLES", ["/nonexistent/tcp"])
            assert ports.user_of(port) is None
            monkeypatch.undo()
        process.kill()
    assert ports.user_of(port) is None


@pytest.mark.parametrize(("owner", "name"), [("0", "root"), ("4294967294", "4294967294")])
def test_another_user_is_named(monkeypatch, tmp_path, owner, name):
    table = tmp_path / "tcp"
    address, end = "00000000:04D2 00000000:0000 0A", "00000000:00000000 00:00000000 00000000"
    table.write_text(f"sl local\n   0: {address} {end} {owner} 0 {2**40} 1 0\n")
    monkeypatch.setattr(ports, "_TABLES", [str(table)])
    assert ports.user_of(1234) == f"a process of user {name}"
    assert ports.user_of(1235) is None


@pytest.fixture
def settings(tmp_path):
    """Write the files in which Linux gives its range of ports, and return the folder."""

    def write(port_range, reserved=""):
        if port_range is not None:
            (tmp_path / "ip_local_port_range").write_text(port_range)
            (tmp_path / "ip_local_reserved_ports").write_text(f"{reserved}\n")
        return str(tmp_path)

    return write


def until_any(settings):
    """The candidates before the system is asked."""
    return list(itertools.takewhile(bool, ports.candidates(settings)))


@pytest.mark.parametrize(
    ("port_range", "reserved", "expected"),
    [
        ("32768\t60999\n", "", [*BELOW, *ABOVE]),
        ("1024 64999", "65000,65100-65533,80", [*range(65001, 65100), 65534, 65535]),
        ("1024 65535", "", []),
        ("9000 65535", "", []),
        ("what", "", [*BELOW]),
        ("1 2 3", "", [*BELOW]),
        (None, "", [*BELOW]),
    ],
    ids=["usual", "reserved", "all", "all from 9000", "text", "three numbers", "no file"],
)
def test_ports_that_the_system_gives_are_left_out(settings, port_range, reserved, expected):
    assert sorted(until_any(settings(port_range, reserved))) == expected


def test_ports_above_come_first_and_two_launchers_begin_elsewhere(settings):
    folder = settings("32768 60999")
    assert sorted(until_any(folder)[: len(ABOVE)]) == [*ABOVE]
    assert len({next(ports.candidates(folder)) for _ in range(50)}) > 40


def bind(port):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_ports_are_distinct_held_and_free_afterwards():
    with ports.free_ports(50) as found, ports.free_ports(50) as others:
        assert len({*found, *others}) == 100
        for port in found:
            with pytest.raises(OSError):
                bind(port)
    for port in found:
        bind(port)


def test_a_port_in_use_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as other, ports.free_ports(1) as (free,):
        used = other.getsockname()[1]
        with ports.free_ports(2, iter([used, free, 0, 0])) as found:
            assert not {used, free} & {*found}


def test_what_cannot_be_held_is_free(monkeypatch):
    monkeypatch.setattr(ports, "can_be_held", lambda: False)
    with ports.free_ports(1) as (port,):
        bind(port)
