"""Tasks at a rendezvous, as threads at ports from the system, and other programs at their ports."""

import contextlib
import faulthandler
import itertools
import socket
import socketserver
import threading
import time

import pytest

from support.pace import PACE
from support.worker_group import free_ports
from tf_adasum.cluster.tasks import Cluster

SETTINGS = {"rule": "Adasum()", "devices per worker": 2}

# Seconds within which tasks that are all there have met, on a machine that is busy with other
# things: a round takes 0.1 s, a silent program holds it up for 2 s.
SOON = 15 * PACE


def cluster_of(*addresses, rank=0):
    """The cluster of workers at these addresses, as the one of this rank sees it."""
    return Cluster(addresses, tuple(f"worker {each}" for each in range(len(addresses))), rank)


def tasks(count, hosts=("127.0.0.1",)):
    """For each task the cluster as it sees it."""
    ports = zip(itertools.cycle(hosts), free_ports(count), strict=False)
    addresses = [f"{host}:{port}" for host, port in ports]
    return [cluster_of(*addresses, rank=rank) for rank in range(count)]


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this system has no IPv6")


def run_in_threads(part, count, *, delays=None, limit=2 * SOON):
    """Calls `part(place)` in a thread for each place; returns what each returned or raised, and
    how many seconds it took."""
    outcomes, seconds = [None] * count, [None] * count
    together = threading.Barrier(count)

    def take_part(place):
        together.wait()
        time.sleep(delays[place] if delays else 0)
        start = time.monotonic()
        try:
            outcomes[place] = part(place)
        except Exception as error:
            outcomes[place] = error
        seconds[place] = time.monotonic() - start

    threads = [threading.Thread(target=take_part, args=[n], daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback()  # of all threads: what is waited for may be in another one
        raise AssertionError(f"still waiting after {limit} s")
    return outcomes, seconds


class Programs(socketserver.ThreadingTCPServer):
    """Serves each caller in a thread."""

    allow_reuse_address = daemon_threads = True


@contextlib.contextmanager
def program_at(cluster, behave):
    """Another program on the port of a task; `behave(connection, done)` serves each caller."""
    done = threading.Event()

    class Caller(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                behave(self.request, done)

    with Programs(cluster.host_and_port(cluster.rank), Caller) as server:
        threading.Thread(target=server.serve_forever, args=[0.1]).start()
        try:
            yield
        finally:
            done.set()
            server.shutdown()


@contextlib.contextmanager
def silent_listener():
    """A place that answers no more calls: its queue is full, as behind a link that is cut."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        with socket.create_connection(listener.getsockname()):
            yield listener.getsockname()


def connected(cluster):
    """Return a connection to a task, as soon as it listens."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            return socket.create_connection(cluster.host_and_port(cluster.rank), SOON)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.001)
