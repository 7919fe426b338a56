"""Collectives among threads: what they do is TensorFlow's contract, nothing is computed for them.

Each replica is a thread, and the threads take turns: a thread runs until it has to wait for others
in a collective. So the outcome depends on no timing, and all replicas can be traced into one graph.

In every group the ranks are in another order than the replicas; see `groups.CollectiveGroup`.
"""

import contextlib
import functools
import threading

import numpy as np
import tensorflow as tf

from support.pace import PACE
from support.rendezvous_tasks import run_in_threads
from tf_adasum.aggregation import aggregate
from tf_adasum.aggregation.groups import CollectiveGroup
from tf_adasum.aggregation.reduction_planner import CollectiveReductionPlanner

SECONDS = 60 * PACE  # a thread that waits longer for the others has been left alone


class ExchangeHub:
    """Where the replicas of a test meet.

    Attributes:
        calls: for each replica the collectives it took part in: ``(kind, shape)``.
        sent: for each replica dict from kinds to the bytes it has sent to others; not in graphs.
    """

    def __init__(self, replicas):
        self.calls = [[] for _ in range(replicas)]
        self.sent = [{} for _ in range(replicas)]
        self.turn = threading.Lock()
        self._meetings = {}  # from the replicas that meet: their barrier, and what they brought
        self._is_closed = False

    def swap(self, replica, members, kind, value):
        """Return what all members brought, in their order."""
        self.calls[replica].append((kind, value.shape))
        barrier, brought = self._meetings.setdefault(
            frozenset(members), (threading.Barrier(len(members), timeout=SECONDS), {})
        )
        if self._is_closed:
            barrier.abort()
        brought[replica] = (kind, value)
        with self._out_of_turn():
            barrier.wait()
        values = [brought[member] for member in members]
        with self._out_of_turn():
            barrier.wait()  # before the next collective brings something else
        alike = {(kind, tuple(value.shape), value.dtype) for kind, value in values}
        assert len(alike) == 1, f"all members call the same collective alike: {alike}"
        return [value for _, value in values]

    def count(self, replica, kind, value, factor):
        """Note that a replica sends `factor` times the bytes of `value`."""
        if value.shape.is_fully_defined():
            size = value.shape.num_elements() * value.dtype.size
            self.sent[replica][kind] = self.sent[replica].get(kind, 0) + factor * size

    def close(self):
        """Free those who wait for a replica that has failed."""
        self._is_closed = True
        for barrier, _ in self._meetings.values():
            barrier.abort()

    @contextlib.contextmanager
    def _out_of_turn(self):
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()


class FakeCollectives:
    """The three collectives of a replica in one group.

    Args:
        hub: where they meet.
        members: for each rank the replica at that rank.
        replica: this one.
    """

    def __init__(self, hub, members, replica):
        self._hub, self._members, self._replica = hub, list(members), replica

    def all_to_all(self, shards):
        count = len(self._members)
        assert shards.shape[0] == count
        self._hub.count(self._replica, "all_to_all", shards, (count - 1) / count)
        rank = self._members.index(self._replica)
        return tf.stack([rows[rank] for rows in self._swap("all_to_all", shards)])

    def all_reduce(self, value):
        self._hub.count(self._replica, "all_reduce", value, 1)
        return functools.reduce(tf.add, self._swap("all_reduce", value))

    def all_gather(self, value):
        self._hub.count(self._replica, "all_gather", value, len(self._members) - 1)
        return tf.concat(self._swap("all_gather", value), axis=0)

    def _swap(self, kind, value):
        return self._hub.swap(self._replica, self._members, kind, value)


def run_in_turns(hub, part):
    """Run ``part(replica)`` for every replica, each in its thread; return what they return."""
    # Threads do not inherit the graph that is being built.
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def take_part(replica):
        with hub.turn, graph.as_default() if graph else tf.device("CPU:0"):
            try:
                return part(replica)
            except Exception:
                hub.close()
                raise

    outcomes, _ = run_in_threads(take_part, len(hub.calls), limit=2 * SECONDS)
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    # The others' broken barriers follow from the first error.
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return outcomes


def exchanged(gradients, scheme, *, bucket_bytes=None, all_gather_threshold_bytes=0):
    """Aggregate over all replicas.

    Args:
        gradients: for each replica its gradients.
        scheme: the `Scheme`.
        bucket_bytes: as for `aggregate`.
        all_gather_threshold_bytes: as for `CollectiveReductionPlanner`.

    Returns:
        For each replica its combined gradients, and the `ExchangeHub`.
    """
    hub = ExchangeHub(len(gradients))

    def part(replica):
        def group_of(stride, radix):
            member = replica // stride % radix
            members = [replica + (i - member) * stride for i in range(radix)]
            ranked = np.random.default_rng([0, *members]).permutation(members).tolist()
            collectives = FakeCollectives(hub, ranked, replica)
            member_of_rank = [members.index(each) for each in ranked]
            return CollectiveGroup(collectives, member_of_rank, member)

        planner = CollectiveReductionPlanner(scheme, group_of, all_gather_threshold_bytes)
        return aggregate([gradients[replica]], planner, bucket_bytes)

    return run_in_turns(hub, part), hub


def exchanged_arrays(gradients, scheme, **options):
    """As `exchanged`, with dense gradients as NumPy arrays."""
    results, hub = exchanged(gradients, scheme, **options)
    return [[gradient.numpy() for gradient in own] for own in results], hub
