"""One task's part of the rendezvous: its open port, its calls on the others, and what they said.

A pair of tasks has met when each has called on the other: a task that can call but not be called
would fail later, in TensorFlow. Threads call and answer, so that no task waits for one that is
itself waiting, and strangers keep nobody waiting. Standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import secrets
import socket
import threading
import time

from tf_adasum.cluster import addresses, introductions, json_lines, ports
from tf_adasum.cluster.introductions import Distrusted, Introduction, Stranger
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster

SECONDS_BETWEEN_ROUNDS = 0.1

ANOTHER_PROGRAM = "another program answers there"
NO_ANSWER = "the connection is taken, but nothing answers"
UNPROVEN = "what answers there does not know the secret"

# Between calls on a task that is there, only to hear its troubles.
_SECONDS_BETWEEN_NEWS = 0.5
_MOST_CALLS = 32  # at a time
# At a time, besides one of each task. With one more the oldest has to go: a task needs
# milliseconds, and whoever stays longer is likely to be none.
_MOST_STRANGERS = 32


class Meeting:
    """The port is open while the context is.

    Args:
        cluster: the `Cluster`.
        terms: dict of what all tasks have to have in common.
        offer: dict of what this task tells the others beyond that.
        secret: the `Secret`.

    Attributes:
        heard: from ranks to the last `Introduction` of each.
        distrusted: from ranks of tasks that do not know the secret to whether they have one.
        troubles: from ranks to why the last call on them came to nothing.

    Raises:
        OSError: if this task cannot listen on its port.
    """

    def __init__(self, cluster: Cluster, terms: dict, offer: dict, secret: Secret):
        self.heard: dict[int, Introduction] = {}
        self.distrusted: dict[int, bool] = {}
        self.troubles: dict[int, str] = {}
        self._cluster, self._secret = cluster, secret
        self._own = Introduction(cluster.rank, secrets.token_hex(8), terms, offer)
        self._others = [rank for rank in range(len(cluster.addresses)) if rank != cluster.rank]
        # Of the runs that these ranks had, see `Introduction`.
        self._reached: dict[int, str] = {}
        self._came: dict[int, str] = {}
        self._told_all: dict[int, str] = {}
        self._came_in_vain: set[int] = set()
        self._calling: dict[int, float] = {}
        self._called: dict[int, float] = {}
        self._change = threading.Condition()
        self._listener = _listening(cluster)
        self._callers: collections.deque[socket.socket] = collections.deque()
        self._closing = threading.Event()
        self._answering = threading.Thread(target=self._accept_callers, daemon=True)

    def __enter__(self) -> Meeting:
        """Begin to answer callers."""
        self._answering.start()
        return self

    def __exit__(self, *exception) -> None:
        """Close the port."""
        self._closing.set()
        self._answering.join()
        self._listener.close()

    # ---- who has met whom ----------------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return the ranks of the tasks that this one has not met yet."""
        return [rank for rank in self._others if not self._has_met(rank)]

    def has_reached(self, rank: int) -> bool:
        """Whether a call on this task has been answered."""
        return rank in self._reached

    def is_over(self) -> bool:
        """Whether all tasks have met all others, and know that of each other, or cannot agree."""
        return all(map(self._is_done_with, self._others))

    def different_term(self, rank: int) -> str | None:
        """Return the first term in which a task differs from this one."""
        ours, theirs = self._own.terms, self.heard[rank].terms
        differ = (term for term in [*ours, *theirs] if ours.get(term) != theirs.get(term))
        return next(differ, None)

    def _has_met(self, rank):
        if rank in self.distrusted:  # and has seen for itself
            return rank in self._came_in_vain
        if rank not in self.heard:
            return False
        # With other terms it is enough that both know.
        run = self.heard[rank].run
        is_both_ways = self._reached.get(rank) == self._came.get(rank) == run
        return is_both_ways or self.different_term(rank) is not None

    def _is_done_with(self, rank):
        if not self._has_met(rank):
            return False
        if rank in self.distrusted or self.different_term(rank) is not None:
            return True
        other = self.heard[rank]
        return other.has_met_all and self._told_all.get(rank) == other.run

    def _introduction(self):
        return Introduction(
            self._own.rank,
            self._own.run,
            self._own.terms,
            self._own.offer,
            has_met_all=not self.missing(),
            troubles={
                rank: self.troubles[rank] for rank in self.missing() if rank in self.troubles
            },
        )

    # ---- calls ---------------------------------------------------------------------------------

    def call_round(self, deadline: float) -> None:
        """Begin to call on tasks from which this one has something to hear, or to tell.

        Args:
            deadline: of the calls, by `time.monotonic`.
        """
        with self._change:
            waiting = [rank for rank in self._others if self._has_to_call(rank)]
            waiting.sort(key=lambda rank: self._called.get(rank, 0.0))
            for rank in waiting[: _MOST_CALLS - len(self._calling)]:
                self._calling[rank] = self._called[rank] = time.monotonic()
                arguments = (rank, self._introduction(), deadline)
                threading.Thread(target=self._call, args=arguments, daemon=True).start()

    def _has_to_call(self, rank):
        if rank in self._calling or self._is_done_with(rank):
            return False
        run = self.heard[rank].run if rank in self.heard else None
        has_news = not self.missing() and self._told_all.get(rank) != run
        is_urgent = run is None or self._reached.get(rank) != run or has_news
        pause = SECONDS_BETWEEN_ROUNDS if is_urgent else _SECONDS_BETWEEN_NEWS
        return time.monotonic() >= self._called.get(rank, -pause) + pause

    def wait(self, seconds: float) -> None:
        """Wait until somebody has said something, or the time is over."""
        with self._change:
            if not self.is_over():
                self._change.wait(seconds)

    def wait_for_calls(self, seconds: float) -> None:
        """Wait until the calls that have begun are over, or the time is."""
        with self._change:
            self._change.wait_for(lambda: not self._calling, seconds)

    def _call(self, rank, ours, deadline):
        theirs, trouble, distrusted = None, None, None
        try:
            seconds = min(introductions.SECONDS_FOR_AN_ANSWER, deadline - time.monotonic())
            where = self._cluster.host_and_port(rank)
            with socket.create_connection(where, max(0.001, seconds)) as connection:
                try:
                    theirs = introductions.call(connection, ours, self._secret)
                except TimeoutError:
                    trouble = NO_ANSWER
        except Stranger:
            trouble = ANOTHER_PROGRAM
        except Distrusted as error:
            distrusted, trouble = error.has_secret, UNPROVEN
        except EOFError:
            trouble = "the connection was closed at once"
        except TimeoutError:
            trouble = os.strerror(errno.ETIMEDOUT)
        except OSError as error:
            trouble = error.strerror or str(error)
        except UnicodeError:
            trouble = "no name of a host"
        with self._change:
            del self._calling[rank]
            is_wrong = theirs is not None and theirs.rank != rank
            if is_wrong:
                trouble = f"it is {self._name(theirs)} that answers there"
            if distrusted is not None:
                self.distrusted[rank] = distrusted
            if trouble is not None:
                self.troubles[rank] = trouble
            if theirs is not None:
                self._remember(theirs, ours, None if is_wrong else self._reached)
            self._change.notify_all()

    def _name(self, theirs):
        if theirs.run == self._own.run:
            return "this task itself"
        names = self._cluster.names
        return names[theirs.rank] if 0 <= theirs.rank < len(names) else f"task {theirs.rank}"

    def _remember(self, theirs, ours, runs):
        """Note what was said in a call, and in which direction it went."""
        rank = theirs.rank
        if rank not in self._others:
            return
        self.heard[rank] = theirs
        if runs is not None:
            runs[rank] = theirs.run
        if runs is self._reached:
            self.troubles.pop(rank, None)
            self.distrusted.pop(rank, None)
        if ours.has_met_all:
            self._told_all[rank] = theirs.run

    # ---- callers -------------------------------------------------------------------------------

    def _accept_callers(self):
        """Give each caller a thread: one that says nothing keeps nobody waiting."""
        most = _MOST_STRANGERS + len(self._others)
        while not self._closing.is_set():
            json_lines.wait([self._listener], SECONDS_BETWEEN_ROUNDS)
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # the caller is gone again, or there is no file descriptor for it
                time.sleep(SECONDS_BETWEEN_ROUNDS)
                continue
            with self._change:
                self._callers.append(connection)
                if len(self._callers) > most:
                    with contextlib.suppress(OSError):
                        self._callers.popleft().shutdown(socket.SHUT_RDWR)  # its thread ends
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection):
        said, vain = None, None
        with connection:
            try:
                said = introductions.answer(
                    connection, self._own.rank, self._introduction_now, self._secret
                )
            except Distrusted as error:
                vain = error.rank
            except (Stranger, EOFError, OSError):
                pass  # a stranger; or the caller went away, and will call again
        with self._change:
            with contextlib.suppress(ValueError):  # it had to go
                self._callers.remove(connection)
            if said is not None:
                self._remember(*said, self._came)
            if vain in self._others:
                self._came_in_vain.add(vain)
            self._change.notify_all()

    def _introduction_now(self):
        with self._change:
            return self._introduction()


def _listening(cluster):
    """Return a socket that listens on this task's port."""
    host, port = cluster.host_and_port(cluster.rank)
    listener = None
    try:
        listener = addresses.bound(host, port, reuse=True)
        listener.listen(128)
        listener.setblocking(False)  # a caller may be gone before it is accepted
    except OSError as error:
        if listener:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise port_in_use(cluster, ports.user_of(port)) from error
        raise OSError(
            error.errno, f"{cluster.named([cluster.rank])} cannot listen on its port: {error}"
        ) from error
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
