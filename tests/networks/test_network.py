"""The network itself: its links do what they are told, and nothing of it stays."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from support import network
from support.launching import eventually, is_running

pytestmark = pytest.mark.version_independent
PORT, OTHER_PORT = 2222, 3333

SERVER = """
import socket, sys, threading
def answer(connection):
    while data := connection.recv(1 << 16):
        connection.sendall(data)
def serve(port):
    server = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    print(flush=True)
    while True:
        threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
for port in sys.argv[1:]:
    threading.Thread(target=serve, args=[int(port)]).start()
"""

# Prints the seconds until so many bytes have come back; nothing if they have not.
CLIENT = """
import socket, sys, time
address, port, count = sys.argv[1], *map(int, sys.argv[2:])
begun = time.monotonic()
try:
    with socket.create_connection((address, port), 1.5) as connection:
        connection.sendall(bytes(count))
        while count:
            count -= len(connection.recv(1 << 16)) or sys.exit()
    print(time.monotonic() - begun)
except OSError:
    pass
"""


def serve(host):
    command = [sys.executable, "-c", SERVER, str(PORT), str(OTHER_PORT)]
    process = host.popen(command, stdout=subprocess.PIPE)
    for _ in range(2):
        process.stdout.readline()
    process.stdout.close()


def seconds(host, address, port=PORT, count=1):
    """Seconds of a connection from a host, and of bytes there and back; None if they are lost."""
    command = [sys.executable, "-c", CLIENT, address, str(port), str(count)]
    output, _ = host.popen(command, stdout=subprocess.PIPE).communicate(timeout=20)
    return float(output) if output else None


def test_links_do_what_they_are_told(make_network):
    net = make_network(3)
    a, b, c = net.hosts
    serve(b)
    assert seconds(a, b.address) < 1
    assert b.address6 is None or seconds(c, b.address6) < 1
    assert seconds(a, a.absent) is None
    net.set(0, 1, loss=1.0)
    assert seconds(a, b.address) is None
    net.set(0, 1, delay=0.25, jitter=0.05)  # the handshake, and the byte
    assert seconds(a, b.address) > 0.4
    assert seconds(c, b.address) < 0.4
    net.set(0, 1, rate=400_000)
    assert 0.2 < seconds(a, b.address, count=10_000) < 2
    net.set(1, 0, longest=1000)
    assert seconds(a, b.address, count=5000) is None
    net.heal()
    net.set(without_port=OTHER_PORT)
    assert seconds(a, b.address, OTHER_PORT) is None
    assert seconds(a, b.address) < 1
    net.set(only_port=OTHER_PORT)
    assert seconds(a, b.address) is None
    assert seconds(a, b.address, OTHER_PORT) < 1
    net.heal()
    net.set(1, 0, cut=True)  # the answers
    assert seconds(a, b.address) is None
    assert seconds(c, b.address) < 1
    net.heal()
    net.cut(1)
    assert seconds(c, b.address) is None


PROGRAM = """
import json, sys, time
from support.network import Network
net = Network(2)
forwarder, holders = net._forwarder, [host._holder for host in net.hosts]
print(json.dumps([process.pid for process in [forwarder, *holders]]), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_of_a_program_that_is_ended(make_network, number):
    make_network(1)  # not where it cannot be made; and two do not meet
    tests = pathlib.Path(network.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(tests)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        pids = json.loads(process.stdout.readline())
        assert all(map(is_running, pids))
        process.send_signal(number)
        process.wait(10)
    eventually(lambda: not any(map(is_running, pids)), seconds=10)
    assert not list(pathlib.Path("/sys/class/net").glob(f"n{process.pid}.*"))
