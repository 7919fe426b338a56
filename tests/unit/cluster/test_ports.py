"""Who uses a port, and ports that are held. What listens here does it as TensorFlow's server."""

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


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_in_use_cannot_be_held(shared):
    with listen(0) as other, refused():
        ports.hold(other.getsockname()[1], shared=shared)


def test_the_user_of_a_port_is_named(monkeypatch):
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        port = int(process.stdout.readline())
        with open(f"/proc/{process.pid}/comm") as name:
            assert ports.user_of(port) == f"{name.read().strip()} (pid {process.pid})"
        # The process that listens is named, not the one that is connected.
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert f"pid {process.pid}" in ports.user_of(port)
            assert ports.user_of(connection.getsockname()[1]) == "this process"
            monkeypatch.setattr(ports, "_TABLES", ["/nonexistent/tcp"])
            assert ports.user_of(port) is None
            monkeypatch.undo()
    assert ports.user_of(port) is None


@pytest.mark.parametrize(("owner", "name"), [("0", "root"), ("4294967294", "4294967294")])
def test_another_user_is_named(monkeypatch, tmp_path, owner, name):
    table = tmp_path / "tcp"
    address, end = "00000000:04D2 00000000:0000 0A", "00000000:00000000 00:00000000 00000000"
    table.write_text(f"sl local\n   0: {address} {end} {owner} 0 77 1 0\n")
    monkeypatch.setattr(ports, "_TABLES", [str(table)])
    monkeypatch.setattr(ports, "_process_with", lambda inode: None)
    assert ports.user_of(1234) == f"a process of user {name}"
    assert ports.user_of(1235) is None
