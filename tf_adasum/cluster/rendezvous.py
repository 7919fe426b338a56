"""The rendezvous: the tasks of a cluster meet before TensorFlow starts its server.

TensorFlow's own start-up says nothing while it waits for a task that never comes, and does not
notice that the tasks were started with different settings. So every task first listens on its own
port and introduces itself at the others' ports. Each pair exchanges one line of JSON in either
direction; a task that has met all others leaves the port to TensorFlow. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from typing import Any

from tf_adasum.cluster import addresses, json_lines, ports
from tf_adasum.cluster.tasks import Cluster

# Seconds to wait for the others where CommunicationOptions(timeout_seconds=...) says nothing.
DEFAULT_TIMEOUT = 60.0

_SECONDS_BETWEEN_ROUNDS = 0.1
_SECONDS_BETWEEN_MESSAGES = 10.0
_SECONDS_FOR_AN_ANSWER = 2.0
_SECONDS_FOR_A_SERVER = 10.0
# In the frame with which a server begins each HTTP/2 connection: 3 bytes of length, then its type.
_SETTINGS_TYPE = (3, 0x04)


def wait_for_server(address: str, timeout: float = _SECONDS_FOR_A_SERVER) -> None:
    """Wait until TensorFlow's server has taken an address over; return after the timeout, too.

    The other tasks register with worker 0's server. One that comes while the server starts, on the
    port where they have just met, may wait for an answer that never comes (seen with TensorFlow
    2.15 once in three starts of four workers on a busy machine).

    Args:
        address: "host:port" of worker 0.
        timeout: seconds. Defaults to 10.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(addresses.split(address), timeout=1) as connection:
                begun = connection.recv(_SETTINGS_TYPE[0] + 1, socket.MSG_WAITALL)
        except OSError:
            begun = b""
        if len(begun) > _SETTINGS_TYPE[0] and begun[_SETTINGS_TYPE[0]] == _SETTINGS_TYPE[1]:
            return
        time.sleep(_SECONDS_BETWEEN_ROUNDS)


def meet(
    cluster: Cluster, terms: dict[str, Any], timeout: float, offer: dict[str, Any] | None = None
) -> dict[int, dict[str, Any]]:
    """Wait until every task of the cluster has introduced itself.

    Args:
        cluster: the `Cluster`.
        terms: dict of what all tasks have to have in common; JSON types.
        timeout: seconds.
        offer: dict of what this task tells the others beyond that; JSON types. Defaults to nothing.

    Returns:
        Dict from the others' ranks to what they have offered.

    Raises:
        OSError: if another process uses this task's port.
        TimeoutError: naming the tasks that did not start in time.
        ValueError: naming a task that was started with another cluster or other terms.
    """
    terms = {"cluster": list(cluster.addresses), **terms}
    deadline = time.monotonic() + timeout
    next_message = time.monotonic() + _SECONDS_BETWEEN_MESSAGES
    with _Introductions(cluster, terms, offer or {}) as introductions:
        while missing := introductions.missing():
            for rank in missing:
                introductions.call_on(rank, deadline)
            if time.monotonic() > deadline:
                break
            if time.monotonic() > next_message:
                next_message += _SECONDS_BETWEEN_MESSAGES
                print(f"tf_adasum: waiting for {cluster.named(missing)}", flush=True)
            if introductions.missing():
                time.sleep(_SECONDS_BETWEEN_ROUNDS)
        # Not before all others have heard this task's terms: they would miss it instead.
        introductions.check_terms()
        if missing := introductions.missing():
            raise TimeoutError(_who_is_missing(cluster, missing, introductions.strangers, timeout))
        return introductions.offers


def _who_is_missing(cluster, missing, strangers, timeout):
    message = (
        f"{cluster.named([cluster.rank])} waited {timeout:g} s, but {cluster.named(missing)} did "
        "not start. Start every task of the cluster, check that the addresses can be reached from "
        "here, or wait longer with "
        "tf.distribute.experimental.CommunicationOptions(timeout_seconds=...)."
    )
    others = [rank for rank in missing if rank in strangers]
    if others:
        message += f" Another program answers at the address of {cluster.named(others)}."
    return message


class _Introductions:
    """This task's open port, and what the other tasks have said.

    A thread answers callers, so that no task waits for one that is itself waiting.
    """

    def __init__(self, cluster, terms, offer):
        self._cluster = cluster
        self._introduction = {"rank": cluster.rank, "terms": terms, "offer": offer}
        self._terms_of = {}
        self.offers = {}
        self.strangers = set()
        self._listener = _listen(cluster)
        self._closing = threading.Event()
        self._answering = threading.Thread(target=self._answer_callers, daemon=True)

    def __enter__(self):
        self._answering.start()
        return self

    def __exit__(self, *exception):
        self._closing.set()
        self._answering.join()
        self._listener.close()

    def missing(self):
        """Return the ranks of the tasks not met yet."""
        own = self._cluster.rank
        tasks = range(len(self._cluster.addresses))
        return [rank for rank in tasks if rank != own and rank not in self._terms_of]

    def call_on(self, rank, deadline):
        """Introduce this task to another and hear its introduction, if it is there."""
        seconds = min(_SECONDS_FOR_AN_ANSWER, deadline - time.monotonic())
        if seconds <= 0:
            return
        try:
            where = self._cluster.host_and_port(rank)
            with socket.create_connection(where, seconds) as connection:
                connection.sendall(json_lines.encode(self._introduction))
                introduction = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER)
                if self._remember(introduction) != rank:
                    self.strangers.add(rank)
        except ConnectionRefusedError:
            self.strangers.discard(rank)
        except TimeoutError:
            self.strangers.add(rank)
        except (OSError, UnicodeError):
            pass  # not reachable now, or no name that can be; the next round tries again

    def check_terms(self):
        """Raise a ValueError if a task that was met has other terms."""
        ours = self._introduction["terms"]
        for rank, theirs in list(self._terms_of.items()):
            for term in ours.keys() | theirs.keys():
                if ours.get(term) != theirs.get(term):
                    names = self._cluster.names
                    raise ValueError(
                        f"All workers must be started with the same {term}. Received: "
                        f"{ours.get(term)} on {names[self._cluster.rank]}, {theirs.get(term)} on "
                        f"{names[rank]}"
                    )

    def _answer_callers(self):
        """Give each caller a thread: one that says nothing keeps nobody waiting."""
        while not self._closing.is_set():
            if not select.select([self._listener], [], [], _SECONDS_BETWEEN_ROUNDS)[0]:
                continue
            with contextlib.suppress(OSError):  # the caller may be gone again
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):  # the caller went away; it will call again
            connection.settimeout(_SECONDS_FOR_AN_ANSWER)
            introduction = json_lines.receive(connection, _SECONDS_FOR_AN_ANSWER)
            connection.sendall(json_lines.encode(self._introduction))
            self._remember(introduction)

    def _remember(self, introduction):
        """Return the rank of the task that introduced itself, None if it is none of the others."""
        introduction = introduction or {}
        rank, terms = introduction.get("rank"), introduction.get("terms")
        others = set(range(len(self._cluster.addresses))) - {self._cluster.rank}
        if type(rank) is not int or rank not in others or not isinstance(terms, dict):
            return None
        offer = introduction.get("offer")
        self.offers[rank] = offer if isinstance(offer, dict) else {}
        self._terms_of[rank] = terms
        return rank


def _listen(cluster):
    """Listen on this task's port; on all interfaces, unless its host is this machine alone."""
    host, port = cluster.host_and_port(cluster.rank)
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.listen(128)
        listener.settimeout(_SECONDS_BETWEEN_ROUNDS)  # a caller may be gone before it is accepted
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise port_in_use(cluster, ports.user_of(port)) from error
    return listener


def port_in_use(cluster: Cluster, user: str | None) -> OSError:
    """Return the error that this task's port is in use.

    Args:
        cluster: the `Cluster`.
        user: who uses it, as `ports.user_of` names it; None where it is not known.
    """
    return OSError(
        errno.EADDRINUSE,
        f"the port of {cluster.named([cluster.rank])} is in use by {user or 'another process'}. "
        "End that process or give the task another port",
    )
