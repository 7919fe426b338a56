"""Who uses a port, and ports that are held. What listens here does it as TensorFlow's server."""

import contextlib
import errno
import socket
import subprocess
import sys

import pytest

from tf_adasum.cluster import ports

LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


def listen(port, host="127.0.0.1", *, reuse=True):
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        listener.bind((host, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def refused():
    return pytest.raises(OSError, match=rf"\[Errno {errno.EADDRINUSE}\]")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_held_port_is_for_one_server(host):
    with ports.hold(0) as held:
        port = held.getsockname()[1]
        with refused():
            listen(port, host, reuse=False)
        with refused():
            ports.hold(port)
        with listen(port, host), refused():
            listen(port, host)
        with listen(port, host) as again, socket.create_connection(("127.0.0.1", port)):
            again.accept()[0].close()
    assert ports.can_be_held()


def test_a_port_that_another_holds_can_be_held_too():
    with ports.hold(0) as held:
        port = held.getsockname()[1]
        with ports.hold(port, shared=True), listen(port):
            pass
    with ports.hold(port, shared=True), refused():
        listen(port, reuse=False)


def test_a_port_in_use_cannot_be_held():
    with listen(0) as other:
        port = other.getsockname()[1]
        for shared in (False, True):
            with refused():
                ports.hold(port, shared=shared)


def test_without_ipv6(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with ports.hold(0) as held:
        assert held.family == socket.AF_INET
        with listen(held.getsockname()[1]):
            pass


def test_the_user_of_a_port_is_named():
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        port = int(process.stdout.readline())
        with open(f"/proc/{process.pid}/comm") as name:
            assert ports.user_of(port) == f"{name.read().strip()} (pid {process.pid})"
        # It is another process that is asked for, and the one that listens.
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert f"pid {process.pid}" in ports.user_of(port)
            assert ports.user_of(connection.getsockname()[1]) == "this process"
    finally:
        process.communicate(timeout=30)
    assert ports.user_of(port) is None


def test_another_user_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(ports, "_process_with", lambda inode: None)
    for owner, name in (("0", "root"), ("4294967294", "4294967294")):
        table = tmp_path / "tcp"
        address, end = "00000000:04D2 00000000:0000 0A", "00000000:00000000 00:00000000 00000000"
        table.write_text(f"sl local\n   0: {address} {end} {owner} 0 77 1 0\n")
        monkeypatch.setattr(ports, "_TABLES", [str(table)])
        assert ports.user_of(1234) == f"a process of user {name}"
        assert ports.user_of(1235) is None


def test_without_proc_nobody_is_named(monkeypatch):
    monkeypatch.setattr(ports, "_TABLES", ["/nonexistent/tcp"])
    with contextlib.closing(listen(0)) as listener:
        assert ports.user_of(listener.getsockname()[1]) is None
