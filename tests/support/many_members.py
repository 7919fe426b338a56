"""Many simulated workers that all wait, for one real worker 0 of the failure detector.

    python tests/support/many_members.py COUNT SECONDS

prints as JSON: the CPU seconds per second of worker 0's two threads, the bytes of the longest line
that it sends, and how many statuses arrive per second. The simulated workers run in another
process, so that they do not count.
"""

import contextlib
import json
import multiprocessing
import random
import select
import socket
import subprocess
import sys
import time

from tf_adasum.cluster import rendezvous
from tf_adasum.cluster.channel import Channel
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.start_round import HAS_RESULT
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.health import call_site, monitor

SECRET = Secret(b"key")
PLACES = ("train.py:41 (main)", "train.py:57 (main)", "evaluate.py:8 (scores)")
SECONDS_TO_JOIN = 60.0


def members(port, count, last, longest):
    """Connect workers 1 to `count` - 1, and send their statuses once a second until `last`."""
    rng, since = random.Random(0), time.monotonic()
    poll, channels, lines, keys = select.poll(), {}, {}, {}
    for rank in range(1, count):
        channel = Channel(connected(port, since), SECRET, is_server=False, rank=rank)
        number = channel.socket.fileno()
        channels[number], keys[number] = channel, f"{rank}/{16 * '0'}"
        poll.register(number, select.POLLIN)
    described, told = set(), set()
    while len(told) < count - 1 and time.monotonic() < since + SECONDS_TO_JOIN:
        for number, _ in poll.poll(100):
            channel, value = channels[number], None
            messages = channel.receive()
            if channel.is_authenticated and number not in described:
                described.add(number)
                value = {"cluster": {}, "settings": {}}
            if any(message.get("key") == "result" for message in messages):
                told.add(number)
                value = HAS_RESULT
            if value:
                channel.send({"op": "set", "key": keys[number], "value": value})
    waits = {number: since - rng.uniform(0, 3) for number in channels}
    send_at = {number: since + rng.uniform(0, 1) for number in channels}
    calls = json.dumps(
        [[number, 7**number % 2**31, "begins epoch 3 of fit"] for number in range(8)]
    )
    while (now := time.monotonic()) < last.value:
        for number, channel in channels.items():
            if now >= send_at[number]:
                send_at[number] = now + 1.0
                status = {
                    "state": "running",
                    "call": 1,
                    "in_call": 1,
                    "collectives_entered": 40,
                    "waiting_seconds": now - waits[number],
                    "location": f"{PLACES[number % len(PLACES)]}, in fit, epoch 3",
                    "calls": calls,
                }
                value = {"status": status}
                channel.send({"op": "set", "key": keys[number], "value": value})
        for number, _ in poll.poll(20):
            *ended, rest = channels[number].socket.recv(1 << 20).split(b"\n")
            for part in ended:
                longest.value = max(longest.value, lines.pop(number, 0) + len(part))
            lines[number] = lines.get(number, 0) + len(rest)


def connected(port, since):
    """Return a connection to worker 0, which may be slower than its child."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            # From another address: else a connection to no listener might meet itself.
            return socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
        assert time.monotonic() < since + SECONDS_TO_JOIN
        time.sleep(0.01)


def measured(count, seconds):
    """Return the CPU seconds per second, the bytes of the longest line, and statuses per second."""
    names = tuple(f"worker {rank}" for rank in range(count))
    addresses = (f"10.0.{rank // 250}.{rank % 250}:2222" for rank in range(1, count))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cluster = Cluster((f"127.0.0.1:{port}", *addresses), names, 0)
    met = rendezvous.Participant(cluster, {"TF_ADASUM_SECRET": SECRET.key.decode()})
    met._own["cluster"].clear()  # the simulated workers do not send the addresses
    context = multiprocessing.get_context("fork")
    last, longest = context.Value("d", float("inf")), context.Value("q", 0)
    others = context.Process(target=members, args=(port, count, last, longest))
    others.start()
    try:
        met.meet({}, {}, SECONDS_TO_JOIN)
    except TimeoutError:
        others.kill()
        raise
    received, receive = [0], met.receive

    def counted():
        messages = receive()
        received[0] += len(messages)
        return messages

    met.receive = counted
    own = monitor.HealthMonitor(cluster, met)
    own.reachability.try_now_and_then = lambda: None  # the addresses do not exist
    call_site.of_thread = lambda _: (1, PLACES[0])
    try:
        own.start()
        own.started(lambda: (40, 39, 0), lambda cause: None)
        deadline = time.monotonic() + SECONDS_TO_JOIN
        while len(own._statuses) < count - 1:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(own._statuses)} of {count - 1} workers have joined")
            time.sleep(0.1)
        own._update_status(call=1, in_call=1)
        time.sleep(3.0)
        threads = own._thread, met.server._thread
        clocks = [time.pthread_getcpuclockid(each.ident) for each in threads]
        begun, used, longest.value = time.monotonic(), sum(map(time.clock_gettime, clocks)), 0
        received[0] = 0
        time.sleep(seconds)
        used, took = sum(map(time.clock_gettime, clocks)) - used, time.monotonic() - begun
        return used / took, longest.value, received[0] / took
    finally:
        last.value = 0.0
        others.join()
        own.cause = own.cause or ""  # nobody is told
        own.stop()


def run(count, seconds):
    """Return what `measured` returns, from a process of its own."""
    command = [sys.executable, __file__, str(count), str(seconds)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(printed.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), float(sys.argv[2]))))
