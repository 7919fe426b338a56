"""The leader of the store of an elastic job, see `elastic`. Uses only the standard library."""

import contextlib
import dataclasses
import errno
import socket
from typing import Any

from tf_adasum.cluster import addresses, own_address, ports
from tf_adasum.cluster.store import Leader
from tf_adasum.launch.membership import Begin, End, Host, Membership, Stop

_BACKLOG = 256


class JobLeader(Leader):
    """The leader of the store, see `store.Leader`.

    If this launcher has reached the store of another launcher, its host is not in this store. Then
    nothing is decided here.

    Args:
        membership: the `Membership`.
        own_id: the id of this host.
        job: the version of tf_adasum, a space, and a hash of the script's path and arguments; the
            same on all hosts.
        coordinator: the address of this store.

    Attributes:
        hosts: the connected hosts by their ids, in the order in which they joined. The store's lock
            must be held.
    """

    def __init__(self, membership: Membership, own_id: str, job: str, coordinator: str):
        self._membership, self._own_id = membership, own_id
        self._job, self._coordinator = job, coordinator
        self.hosts: dict[str, Host] = {}
        self._refused: set[str] = set()  # ids of hosts
        self._changes: dict[str, Any] = {"leader": own_id}  # keys that the server has to set
        self._port = contextlib.ExitStack()  # of worker 0, in the round that is running

    def close(self) -> None:
        """Release the port of worker 0."""
        self._port.close()

    def changed(self, name: str, value: Any, ends: tuple[str, str]) -> None:
        """Note that a host has joined, changed or left, see `store.Leader`."""
        del ends
        if value is None:
            self.hosts.pop(name, None)
            if name in self._refused:
                self._refused.remove(name)
                self._changes[f"refused/{name}"] = None
        elif value["job"] == self._job:
            self.hosts[name] = Host.parsed(value["host"], name)
        elif name not in self._refused:
            version, own_version = (job.partition(" ")[0] for job in (value["job"], self._job))
            self._refused.add(name)
            self._changes[f"refused/{name}"] = "this host was refused: " + (
                f"its script path or arguments differ from those at {self._coordinator}"
                if version == own_version
                else f"it has tf_adasum {version}, and {self._coordinator} has {own_version}"
            )

    def decide(self, now: float) -> dict[str, Any]:
        """Return new values of keys, see `store.Leader`."""
        if self._own_id in self.hosts:
            decision = self._membership.decide(list(self.hosts.values()), now)
            if isinstance(decision, Begin):
                self._begin(decision)
            elif isinstance(decision, Stop):
                self._changes[f"stop/{decision.round}"] = dataclasses.asdict(decision)
            elif isinstance(decision, End):
                self._changes["end"] = dataclasses.asdict(decision)
        changes, self._changes = self._changes, {}
        return changes

    def _begin(self, begin: Begin) -> None:
        """Publish a round with the address of worker 0, which is on this host."""
        self._port.close()
        (port,) = self._port.enter_context(ports.free_ports(1))
        host, _ = addresses.split(self._coordinator)
        begun = dataclasses.replace(begin, coordinator=addresses.joined(host, port))
        for kind in ("round", "stop"):  # hosts that join later receive this round only
            self._changes[f"{kind}/{begun.round - 1}"] = None
        self._changes[f"round/{begun.round}"] = dataclasses.asdict(begun)

    def end(self, end: End) -> None:
        """End the job. The store's lock must be held."""
        self._membership.end()
        self._changes["end"] = dataclasses.asdict(end)


def listener_at(coordinator: str) -> socket.socket | None:
    """Return a socket that listens at this address; None if this is not possible now.

    This is not possible if the host is not this machine, or if the port is in use.
    """
    host, port = addresses.split(coordinator)
    if not own_address.is_here(host):
        return None
    try:
        return addresses.bound(host, port, reuse=True, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise ValueError(f"--coordinator: cannot listen at {coordinator}: {error}") from error
