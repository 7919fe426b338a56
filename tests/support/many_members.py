"""Many workers that all wait, as threads of a process, for worker 0 of the failure detector.

    python tests/support/many_members.py COUNT SECONDS

prints as JSON: the CPU seconds per second of worker 0's two threads, the bytes of the longest value
that it sends, and how many statuses arrive per second.
"""

import json
import multiprocessing
import random
import resource
import subprocess
import sys
import threading
import time

from tf_adasum.cluster import ports
from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import call_site, connections, monitor

ENVIRONMENT = {"TF_ADASUM_SECRET": "key"}
PLACES = ("train.py:41 (main)", "train.py:57 (main)", "evaluate.py:8 (scores)")
CALLS = json.dumps([[number, 7**number % 2**31, "begins epoch 3 of fit"] for number in range(8)])
SECONDS_TO_JOIN = 60.0


def met_at(cluster):
    """Return the `Participant` of a worker that has met the others."""
    met = Participant(cluster, ENVIRONMENT)
    met._own["cluster"].clear()  # the same long list on all
    met.meet({}, {}, SECONDS_TO_JOIN)
    return met


def send_statuses(cluster):
    """Send a worker's status once a second, until the process ends."""
    session = met_at(cluster).session
    waits_since = time.monotonic() - random.Random(cluster.rank).uniform(0, 3)
    while True:
        status = {
            "state": "running",
            "call": 1,
            "in_call": 1,
            "collectives_entered": 40,
            "waiting_seconds": time.monotonic() - waits_since,
            "location": f"{PLACES[cluster.rank % len(PLACES)]}, in fit, epoch 3",
            "calls": CALLS,
        }
        session.set({"status": status})
        time.sleep(1.0)


def members(clusters, is_over):
    for cluster in clusters:
        threading.Thread(target=send_statuses, args=(cluster,), daemon=True).start()
        time.sleep(0.005)  # the store drops who is silent for the time of a lease
    is_over.wait()


def measured(count, seconds):
    """Return CPU seconds per second, the bytes of the longest value, and statuses per second."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * count + 200), hard))
    names = tuple(f"worker {rank}" for rank in range(count))
    with ports.free_ports(1) as (port,):
        pass
    addresses = tuple(f"127.1.{rank // 250}.{rank % 250 + 1}:{port}" for rank in range(count))
    clusters = [Cluster(addresses, names, rank) for rank in range(count)]
    context = multiprocessing.get_context("fork")
    is_over = context.Event()
    others = context.Process(target=members, args=(clusters[1:], is_over))
    others.start()
    try:
        met = met_at(clusters[0])
        server = connections.OfWorker0(met)
        received, longest = [], []
        receive, send = server.receive, server.send

        def counted():
            received.extend(messages := receive())
            return messages

        def weighed(message):
            longest.append(len(json.dumps(message)))
            send(message)

        server.receive, server.send = counted, weighed
        own = monitor.HealthMonitor(clusters[0], server)
        own._reachability.try_now_and_then = lambda: None  # nobody listens there any more
        call_site.of_thread = lambda _: (1, PLACES[0])
        own.start()
        own.started(lambda: (40, 39, 0), lambda cause: None)
        deadline = time.monotonic() + SECONDS_TO_JOIN
        while len(own._statuses) < count - 1:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(own._statuses)} of {count - 1} workers have joined")
            time.sleep(0.1)
        own._update_status(call=1, in_call=1)
        time.sleep(3.0)
        clocks = [time.pthread_getcpuclockid(t.ident) for t in (own._thread, met.server._thread)]
        begun, used = time.monotonic(), sum(map(time.clock_gettime, clocks))
        received.clear(), longest.clear()
        time.sleep(seconds)
        used, took = sum(map(time.clock_gettime, clocks)) - used, time.monotonic() - begun
        own.cause = own.cause or ""  # nobody is told
        own.stop()
        return used / took, max(longest), len(received) / took
    finally:
        is_over.set()
        others.join()


def run(count, seconds):
    """Return what `measured` returns, from a process of its own."""
    command = [sys.executable, __file__, str(count), str(seconds)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), float(sys.argv[2]))))
