"""How the failure detector uses the store of the cluster, after the rendezvous has opened it.

Worker 0 serves the store, and every other worker has a session with it (`cluster.rendezvous`). A
worker sets its key to its own status, and worker 0 publishes all statuses as one value
(`aggregate`). On the way, a newer value replaces an older one. If a connection closes, the other
process has ended; this is detected within milliseconds. If a connection is silent, the other
process is suspended or cannot be reached. Standard library only.
"""

from __future__ import annotations

import types
from typing import Any

from tf_adasum.cluster.participant import Participant
from tf_adasum.cluster.store import STATUSES

_ENDED = types.SimpleNamespace(is_open=False, last_received_at=0.0)  # before this worker could look


class OfWorker0:
    """The connections of worker 0.

    Args:
        met: the `Participant`.

    Attributes:
        connections: dict from ranks to `Channel`.
    """

    def __init__(self, met: Participant):
        self._met, owners = met, met.server.owners
        self.connections: dict[int, Any] = {
            rank: owners.get(key, _ENDED) for rank, key in met.round.runs().items()
        }
        self.wait, self.close = met.round.wait, met.close

    def receive(self) -> list[tuple[int, Any]]:
        """Return pairs of a sender's rank and a message; None if its connection has ended."""
        found, arrived = [], self._met.round.arrived
        while arrived:
            found.append(arrived.popleft())
        return found

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to all workers."""
        self._met.publish(STATUSES, message)


class OfOtherWorker:
    """The connection of any other worker, see `OfWorker0`."""

    def __init__(self, met: Participant):
        self._session = met.session
        self.wait, self.send, self.close = met.session.wait, met.session.set, met.session.close

    @property
    def connections(self) -> dict[int, Any]:
        """Dict from the rank 0 to the `Channel`."""
        return {0: self._session.channel}

    def receive(self) -> list[tuple[int, Any]]:
        """Return pairs of the rank 0 and a message; None if the connection has ended."""
        messages = [self._session.take(STATUSES)]
        if not self._session.is_over and messages == [None]:
            return []
        return [(0, message) for message in messages]
