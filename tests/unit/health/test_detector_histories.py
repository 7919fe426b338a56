"""The failure detectors of three workers in random histories, with a simulated clock and network.

The workers take part in one collective after the other. A worker may be killed or suspended, and
its network may be cut off. Nothing waits: the test lets the monitors' rounds happen, second by
second.
"""

import contextlib
import json
import types
from unittest import mock

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from support.fuzzing import fuzz_settings
from support.rendezvous_tasks import cluster_of

from tf_adasum.errors import WorkerLostError
from tf_adasum.health import call_site, graceful_stop, heartbeat_detector, monitor

COUNT = 3
RANKS = st.integers(0, COUNT - 1)
SHORT = 20  # seconds of silence that training has to survive
SECONDS_TO_BE_HEARD = 2  # by the others, after a silence
SECONDS_AFTER_AN_END = 4  # until the others have detected that a process has ended
SECONDS_AFTER_SILENCE = 60  # until the others have detected that a worker is silent


class Worker:
    """One worker: its monitor, its process and its network."""

    def __init__(self, world, rank):
        self.world, self.rank = world, rank
        self.is_alive, self.is_suspended, self.is_cut = True, False, False
        self.entered = self.left = 0
        # How long no message could be exchanged with it, unless it was back for long enough.
        self.seconds_away = self.seconds_back = 0
        peers = range(1, COUNT) if rank == 0 else [0]
        begun = {"is_open": True, "last_received_at": world.now}
        self.connections = {peer: types.SimpleNamespace(**begun) for peer in peers}
        addresses = [f"h:{port}" for port in range(1, COUNT + 1)]
        self.monitor = monitor.HealthMonitor(cluster_of(*addresses, rank=rank), self)
        self.monitor.reachability = types.SimpleNamespace(
            unreachable="", try_now_and_then=self.try_others, forget=self.forget
        )
        self.aborted = []
        self.monitor.started(lambda: (self.entered, self.left, 0), self.aborted.append)
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(self.monitor.call(lambda error: None))

    @property
    def runs(self):
        return self.is_alive and not self.is_suspended

    # ---- the channel of the monitor

    def send(self, message):
        for peer in self.connections:  # a newer message replaces an older one
            self.world.on_the_way[self.rank, peer] = json.dumps(message)

    def receive(self):
        found = []
        for peer, connection in self.connections.items():
            if not self.world.is_linked(self.rank, peer):
                continue
            if (message := self.world.on_the_way.pop((peer, self.rank), None)) is not None:
                connection.last_received_at = self.world.now
                found.append((peer, json.loads(message)))
            elif not self.world.workers[peer].is_alive:
                connection.is_open = False
                found.append((peer, None))
        return found

    # ---- reachability

    def try_others(self):
        others = [each for each in range(COUNT) if not self.world.is_linked(self.rank, each)]
        self.monitor.reachability.unreachable = self.monitor._cluster.named(others)

    def forget(self):
        self.monitor.reachability.unreachable = ""

    def round(self):
        """A round of the monitor; afterwards, the process ends if it cannot continue."""
        self.monitor._receive_messages()
        self.monitor._observe()
        self.monitor._send_statuses()
        self.monitor._diagnose()
        if self.monitor.cause:
            self.monitor._send_statuses()
            self.monitor._diagnose()
            assert self.aborted == [self.monitor.cause], "once"
            self.is_alive = False


class World(RuleBasedStateMachine):
    """All workers, the network between them, and the clock."""

    def __init__(self):
        super().__init__()
        self.now, self.on_the_way, self.patches = 1000.0, {}, contextlib.ExitStack()
        clock = types.SimpleNamespace(monotonic=lambda: self.now, sleep=lambda seconds: None)
        for module in (monitor, heartbeat_detector, graceful_stop):
            self.patches.enter_context(mock.patch.object(module, "time", clock))
        of_thread = mock.patch.object(call_site, "of_thread", lambda _: (self.collective(), "fit"))
        self.patches.enter_context(of_thread)
        self.patches.enter_context(mock.patch.dict(monitor.monitors))
        self.patches.enter_context(mock.patch.object(monitor, "say"))
        refuse = mock.Mock(side_effect=AssertionError)
        self.patches.enter_context(mock.patch.object(monitor, "hint", refuse))
        self.workers, self.killed, self.has_ended = [], set(), False
        self.workers += [Worker(self, rank) for rank in range(COUNT)]

    def teardown(self):
        """If all is well again for long enough, all train, or all have ended with a reason."""
        try:
            self.heal()
            for worker in self.workers:
                worker.is_suspended = False
            self.run(2 * SECONDS_AFTER_SILENCE)
            assert len({worker.is_alive for worker in self.workers}) == 1
            before = self.collective()
            self.run(1)
            assert (self.collective() > before) == self.workers[0].is_alive
            for worker in self.workers:
                with contextlib.suppress(WorkerLostError):
                    worker.stack.close()
        finally:
            self.patches.close()

    def is_linked(self, one, other):
        return one == other or not (self.workers[one].is_cut or self.workers[other].is_cut)

    def collective(self):
        """Where the workers are, as long as the same collective runs."""
        return min((worker.left for worker in self.workers), default=0)

    def train(self):
        """The workers enter a collective; it ends if all are in it, and all are linked."""
        for worker in self.workers:
            if worker.runs and worker.entered == worker.left:
                worker.entered += 1
        workers = self.workers
        if all(
            worker.runs and worker.entered > worker.left and not worker.is_cut for worker in workers
        ):
            for worker in self.workers:
                worker.left += 1

    def run(self, seconds):
        for _ in range(seconds):
            self.now += 1.0
            for _ in range(3):
                self.train()
            for worker in self.workers:
                if worker.runs:
                    worker.round()
            self.check()

    def check(self):
        """Check that a worker has only ended after a kill or a long silence."""
        for worker in self.workers:
            # Messages go through worker 0.
            if not (worker.runs and self.workers[0].runs and self.is_linked(0, worker.rank)):
                worker.seconds_away, worker.seconds_back = worker.seconds_away + 1, 0
            else:
                worker.seconds_back += 1
            if worker.seconds_back >= SECONDS_TO_BE_HEARD:
                worker.seconds_away = 0
        causes = [worker.monitor.cause for worker in self.workers if worker.monitor.cause]
        if causes and not self.has_ended:
            assert self.killed or max(worker.seconds_away for worker in self.workers) > SHORT, (
                causes
            )
            self.has_ended = True

    @precondition(lambda self: any(worker.is_alive for worker in self.workers))
    @rule(rank=RANKS)
    def kill(self, rank):
        is_alone = not self.killed and not any(
            worker.is_cut or worker.is_suspended or worker.seconds_away for worker in self.workers
        )
        self.killed |= {rank}
        self.workers[rank].is_alive = False
        if is_alone:
            self.run(SECONDS_AFTER_AN_END)
            for worker in self.workers[:rank] + self.workers[rank + 1 :]:
                assert not worker.is_alive and f"worker {rank} (" in worker.monitor.cause

    @rule(rank=RANKS)
    def suspend(self, rank):
        self.workers[rank].is_suspended = True

    @rule(rank=RANKS)
    def resume(self, rank):
        self.workers[rank].is_suspended = False

    @rule(rank=RANKS)
    def cut(self, rank):
        self.workers[rank].is_cut = True

    @rule()
    def heal(self):
        for worker in self.workers:
            worker.is_cut = False

    @rule(seconds=st.sampled_from([1, 5, 10]))
    def wait(self, seconds):
        self.run(seconds)

    @precondition(lambda self: any(worker.seconds_away for worker in self.workers))
    @rule()
    def wait_until_detected(self):
        self.run(SECONDS_AFTER_SILENCE)
        is_broken = any(worker.is_cut or not worker.runs for worker in self.workers)
        assert not is_broken or not any(worker.runs for worker in self.workers)


TestHistories = World.TestCase
TestHistories.settings = fuzz_settings(200)
