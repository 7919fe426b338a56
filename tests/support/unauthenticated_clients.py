"""Unauthenticated clients: a program that connects to every port of a worker, again and again.

    python unauthenticated_clients.py '{"kind": "silent", "pid": 42, "folder": "/tmp/workers"}'

Prints "all have called" after all have connected, continues until its standard input ends, and runs
with the lowest priority. The token of worker 1, the random name for its start, is in the folder,
see `faulty_worker.show_the_token`; without a token, as under stock TensorFlow, it invents one.
"""

import collections
import contextlib
import http.server
import json
import os
import pathlib
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

from tf_adasum.cluster import store_client
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret

STARTUP_TIMEOUT = 100  # of the worker to its first port
CALLS_PER_SECOND = 50  # at each port, after the first ones
POLL_SECONDS = 0.5  # for ports
MEGABYTE = 1 << 20
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a connection that is closed is reset


def ports_of(pid):
    """Return the TCP ports on which a process listens."""
    sockets = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as lines:
            for fields in map(str.split, list(lines)[1:]):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


def line(**message):
    return json.dumps(message).encode() + b"\n"


class Known:
    """What the clients know of the workers."""

    def __init__(self, folder):
        token, said = folder / "token", folder / "said"
        self.token = token.read_text() if token.exists() else 16 * "0"
        self.said = said.read_bytes() if said.exists() else line(rank=1)


def nested_json(known, number):
    opening = [b"[", b'{"rank":'][number % 2]
    return opening * (900 // len(opening) if number % 4 < 2 else 100_000) + b"\n"


def worker_1_without_token(known, number):
    proof = [{}, {"nonce": 32 * "0"}, {"nonce": 32 * "0", "proof": 64 * "0"}][number % 3]
    messages = {"rank": 1}, {"status": {"state": "failed", "why": "forged"}}
    return line(**proof) + b"".join(
        line(n=n, text=json.dumps(message), proof=64 * "0") for n, message in enumerate(messages)
    )


def setting(known, rank, status):
    """What a client that knows the token of worker 1 sends."""
    return [{"op": "set", "key": f"member/{rank}/{known.token}", "value": {"status": status}}]


def rank_outside(known, number):
    rank = [2, -1, 0, 10**30, "1", [1], True][number % 7]
    return setting(known, rank, {"state": "lost"})


def worker_1_with_token(known, number):
    status = [{"state": "failed", "why": "forged"}, {"state": "lost"}, {"state": "ended"}]
    return setting(known, 1, status[number % 3])


def not_finite(known, number):
    value = [float("inf"), float("nan"), -float("inf"), 10**400][number % 4]
    status = {"waiting_seconds": value, "collectives_entered": value, "call": value}
    return setting(known, 1, status)


# From kinds to what the client of a number says, and how many of them call at a time: bytes, or
# messages that it sends after it has proved the token.
KINDS = {
    "silent": (lambda known, n: b"", 1000),
    "unfinished": (lambda known, n: b" " * MEGABYTE, 50),
    "random": (lambda known, n: random.Random(n).randbytes(10_000) + b"\n" * (n % 2), 100),
    "http": (
        lambda known, n: b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
        100,
    ),
    "nested": (nested_json, 50),
    "without token": (worker_1_without_token, 100),
    "reset": (lambda known, n: b"", 300),
    "rank outside": (rank_outside, 50),
    "worker 1": (worker_1_with_token, 50),
    "not finite": (not_finite, 50),
    "replay": (lambda known, n: known.said, 50),
}


def has_ended(seconds):
    """Wait; return whether the standard input has ended."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


class Clients:
    """Those who call at one port.

    Args:
        port: the port.
        kind: see `KINDS`.
        known: what they know.
    """

    def __init__(self, port, kind, known):
        self._port, self._known, self._resets = port, known, kind == "reset"
        self._says, self._most = KINDS[kind]
        self._held, self._number = collections.deque(), 0

    def call(self):
        """Let one more call; the one that has been there longest goes."""
        with contextlib.suppress(OSError):  # refused, or gone again
            one = socket.create_connection(("127.0.0.1", self._port), timeout=0.5)
            one.setblocking(False)
            if self._resets:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.close()
            else:
                says = self._says(self._known, self._number)
                if isinstance(says, list):
                    one = Channel(one, Secret(), is_server=False)
                self._held.append([one, says])
        self._number += 1
        if len(self._held) > self._most:
            self._held.popleft()[0].close()

    def call_all(self):
        for _ in range(self._most):
            self.call()

    def speak(self):
        """Say more of what has not been said yet, as far as somebody reads it."""
        for each in self._held:
            if isinstance(each[0], Channel):
                each[0].receive()
                while each[1] and each[0].is_authenticated:
                    each[0].send(each[1].pop(0))
                continue
            with contextlib.suppress(OSError):
                while each[1]:
                    each[1] = each[1][each[0].send(each[1]) :]


def call(kind, pid, folder):
    """Call at all ports of a process until the standard input ends."""
    callers, look_at, known = {}, 0.0, None
    deadline = time.monotonic() + STARTUP_TIMEOUT
    while not has_ended(1 / CALLS_PER_SECOND):
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + POLL_SECONDS
            with contextlib.suppress(OSError):  # it has ended
                for port in set(ports_of(pid)) - callers.keys():
                    known = known or Known(folder)
                    callers[port] = Clients(port, kind, known)
                    callers[port].call_all()
                    print("all have called", flush=True)
        if not callers and time.monotonic() > deadline:
            sys.exit("there is nobody to call")
        for each in callers.values():
            each.call()
            each.speak()


def reply(pid, folder):
    """Call as worker 1, with the cluster's own settings but another secret, until stdin ends."""
    cluster = json.loads(folder.joinpath("cluster").read_text())
    told = False
    while not has_ended(0.1):
        with contextlib.suppress(OSError):
            for port in ports_of(pid):
                deadline = time.monotonic() + 1
                found = store_client.call(f"127.0.0.1:{port}", Secret(b"a guess"), deadline, rank=1)
                if found.channel:
                    value = {"settings": {"cluster": cluster}}
                    key = f"member/1/{16 * '0'}"
                    found.channel.send({"op": "set", "key": key, "value": value})
                    print("taken for worker 1", flush=True)
                if not told:
                    print("all have called", flush=True)
                    told = True


def answer_http(port):
    """Serve HTTP at a port until the standard input ends."""
    server = http.server.HTTPServer(("127.0.0.1", port), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("all have called", flush=True)
    while not has_ended(10):
        pass


def main():
    asked = json.loads(sys.argv[1])
    kind, folder = asked["kind"], pathlib.Path(asked["folder"])
    signal.alarm(int(4 * STARTUP_TIMEOUT))  # whatever becomes of those who started it
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(19)
    if kind == "answers http":
        answer_http(asked["port"])
    elif kind == "introduces itself":
        reply(asked["pid"], folder)
    else:
        call(kind, asked["pid"], folder)


if __name__ == "__main__":
    main()
