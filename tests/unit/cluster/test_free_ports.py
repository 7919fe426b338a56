"""The ports of local workers: which ones, and that nobody else gets them."""

import itertools
import socket

import pytest

from tf_adasum.cluster import free_ports, ports

BELOW, ABOVE = range(10000, 32768), range(61000, 65536)


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
        (None, "", [*BELOW]),
    ],
    ids=["usual", "reserved", "all", "all from 9000", "text", "three numbers", "no file"],
)
def test_ports_that_the_system_gives_are_left_out(settings, port_range, reserved, expected):
    assert sorted(until_any(settings(port_range, reserved))) == expected


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
