"""One task's part of the rendezvous: its open port, and its calls on the other tasks.

Two tasks are connected when each task has called the other, because a task that cannot be called
would fail later, in TensorFlow. If the tasks have joined through task 0, they only connect to task
0. A task that is connected to all others reports this to task 0. No task ends the rendezvous before
task 0 reports that all tasks are connected. Calls and answers run in threads, so that a task that
waits, or an unauthenticated client, does not delay other tasks. Standard library only.
"""

from __future__ import annotations

import collections
import errno
import os
import secrets
import socket
import threading
import time

from tf_adasum.cluster import handshake
from tf_adasum.cluster.handshake import AuthenticationError, Hello, ProtocolError
from tf_adasum.cluster.listener import Listener, listening_socket
from tf_adasum.cluster.secret import Secret
from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import see

SECONDS_BETWEEN_ROUNDS = 0.1

ANOTHER_PROGRAM = "another program answers there"
NO_ANSWER = "the connection is accepted, but no answer comes"
UNPROVEN = "the program that answers there does not have the secret"

_SECONDS_TO_CONNECT = 2.0
# The most seconds between calls on a task that does not answer. When that task starts, it calls
# this task.
_SECONDS_BETWEEN_TRIES = 1.0
# Seconds between calls on a task that answers, only to exchange failures: the first number, or the
# second number times the number of other tasks, whichever is more.
_SECONDS_BETWEEN_UPDATES = (0.5, 0.02)
# A task is lost if its port refuses connections for this many seconds, although the task has sent
# its `Hello` before. Before this time is over, the task may be about to restart.
_SECONDS_TO_START_AGAIN = 5.0
# Least seconds between calls on a connected task. Task 0 calls until all tasks are connected to all
# other tasks. The other tasks call each other until task 0 is connected to all other tasks.
_SECONDS_BETWEEN_CHECKS = 1.0
_MOST_REPORTED_TASKS = 100  # tasks whose failures task 0 sends
_MOST_CALLS = 32  # at a time


class PeerHandshakes:
    """A context manager for this task's part of the rendezvous; it opens the task's port.

    Args:
        cluster: the `Cluster`.
        settings: dict of the settings that must match on all tasks.
        payload: dict of other data for the other tasks.
        secret: the `Secret`.

    Attributes:
        hellos: dict from ranks to the last `Hello` of each task.
        unauthenticated: for the rank of each task that failed to authenticate, whether the task
            claims to have a secret.
        failures: dict from ranks to why the last call on the task failed.

    Raises:
        OSError: if this task cannot listen on its port.
    """

    def __init__(self, cluster: Cluster, settings: dict, payload: dict, secret: Secret):
        self.hellos: dict[int, Hello] = {}
        self.unauthenticated: dict[int, bool] = {}
        self.failures: dict[int, str] = {}
        self._cluster, self._secret = cluster, secret
        self._own = Hello(cluster.rank, secrets.token_hex(8), settings, payload)
        is_client = cluster.is_star_topology and cluster.rank > 0
        everybody = range(1 if is_client else len(cluster.addresses))
        self._others = [rank for rank in everybody if rank != cluster.rank]
        # From ranks to the `Hello.run` of the task:
        self._reached: dict[int, str] = {}  # when it last answered this task
        self._callers: dict[int, str] = {}  # when it last called this task
        self._informed_of_end: dict[
            int, str
        ] = {}  # when it received that this task is connected to all
        self._failed_authentications: set[int] = set()  # ranks of callers
        self._calling: set[int] = set()
        self._called: dict[int, float] = {}
        self._tries: collections.Counter[int] = collections.Counter()
        self._different_settings: dict[int, str] = {}
        self._unreachable_since: dict[int, float] = {}  # known tasks whose ports refuse connections
        self._change = threading.Condition()
        least, each = _SECONDS_BETWEEN_UPDATES
        self._seconds_between_updates = max(least, each * (len(cluster.addresses) - 1))
        self._listener = Listener(listening_socket(cluster), self._answer, len(self._others))

    def __enter__(self) -> PeerHandshakes:
        """Begin to answer callers."""
        self._listener.open()
        return self

    def __exit__(self, *exception) -> None:
        """Close the port."""
        self._listener.close()

    # ---- which tasks are connected -------------------------------------------------------------

    def missing(self) -> list[int]:
        """Return the ranks of the tasks to which this task is not connected yet."""
        return [rank for rank in self._others if not self._is_connected_to(rank)]

    def has_reached(self, rank: int) -> bool:
        """Return whether the task with this rank has answered a call."""
        return rank in self._reached

    def is_over(self) -> bool:
        """Return whether all tasks are connected and have confirmed this, or settings differ."""
        if self.missing():
            return False
        if self._cluster.rank > 0:
            return not self._agrees_with(0) or self.hellos[0].all_are_connected
        return self._all_are_connected() and all(map(self._is_informed_of_end, self._others))

    def failures_of_others(self) -> dict[int, dict[int, str]]:
        """Return which ranks cannot reach which other ranks, and why.

        Each task reports its own failures. Task 0 also reports failures of other tasks.
        """
        reported = self.hellos[0].failures if 0 in self.hellos else {}
        of_others = {rank: each.failures.get(rank, {}) for rank, each in self.hellos.items()}
        # Two connected tasks may have stopped calling each other; task 0 has the latest failures.
        ranks = (rank for rank in range(len(self._cluster.names)) if rank != self._own.rank)
        return of_others | {rank: reported[rank] for rank in ranks if reported.get(rank)}

    def difference(self) -> str:
        """Return the error message for tasks with different settings; "" without a difference.

        If this task has found no difference itself, but joined through task 0, return task 0's
        message.
        """
        with self._change:
            for rank, setting in sorted(self._different_settings.items()):
                names = self._cluster.names
                return (
                    f"All workers must be started with the same {setting}. Received: "
                    f"{self._own.settings.get(setting)} on {names[self._own.rank]}, "
                    f"{self.hellos[rank].settings.get(setting)} on {names[rank]} {see('TFA-207')}"
                )
            is_client = self._cluster.is_star_topology and self._own.rank > 0
            return self.hellos[0].difference if is_client and 0 in self.hellos else ""

    def lost(self) -> str:
        """Return an error if a task has ended during the rendezvous; else ""."""
        with self._change:
            return self._lost()

    def _lost(self):
        until = time.monotonic() - _SECONDS_TO_START_AGAIN
        for rank, since in sorted(self._unreachable_since.items(), key=lambda each: each[1]):
            if since <= until:
                return (
                    f"{self._cluster.named([rank])} was lost while the workers started: its "
                    "process has ended without reporting an error"
                )
        return next((each.lost for each in self.hellos.values() if each.lost), "")

    def _is_connected_to(self, rank):
        if rank in self.unauthenticated:  # the other task must also detect the wrong secret
            return rank in self._failed_authentications
        if rank not in self.hellos:
            return False
        # If settings differ, it is enough that both tasks know this.
        run = self.hellos[rank].run
        is_both_ways = self._reached.get(rank) == self._callers.get(rank) == run
        return is_both_ways or rank in self._different_settings

    def _agrees_with(self, rank):
        return rank not in self.unauthenticated and rank not in self._different_settings

    def _all_are_connected(self):
        return all(
            self._is_connected_to(rank)
            and (not self._agrees_with(rank) or self.hellos[rank].is_connected_to_all)
            for rank in self._others
        )

    def _is_informed_of_end(self, rank):
        """Return whether a task was informed that this task only waits for the end."""
        return (
            not self._agrees_with(rank) or self._informed_of_end.get(rank) == self.hellos[rank].run
        )

    def _hello(self):
        missing = self.missing()
        failures = {rank: self.failures[rank] for rank in missing if rank in self.failures}
        is_first = self._cluster.rank == 0
        ranks = [rank for rank in self.hellos if is_first and self._agrees_with(rank)]
        return Hello(
            self._own.rank,
            self._own.run,
            self._own.settings,
            self._own.payload,
            is_connected_to_all=not missing,
            all_are_connected=is_first and self._all_are_connected(),
            failures={
                self._cluster.rank: failures,
                **{
                    rank: self.hellos[rank].failures.get(rank, {})
                    for rank in ranks[:_MOST_REPORTED_TASKS]
                },
            },
            difference=self.difference() if is_first and self._cluster.is_star_topology else "",
            lost=self._lost(),
        )

    # ---- calls ---------------------------------------------------------------------------------

    def call_round(self, deadline: float) -> None:
        """Begin calls on the tasks with which this task has to exchange data.

        Args:
            deadline: the deadline of the calls, by `time.monotonic`.
        """
        with self._change:
            ours = self._hello()
            waiting = [rank for rank in self._others if self._has_to_call(rank, ours)]
            waiting.sort(key=lambda rank: self._called.get(rank, 0.0))
            waiting = waiting[: _MOST_CALLS - len(self._calling)]
            for rank in waiting:
                self._calling.add(rank)
                self._called[rank] = time.monotonic()
                self._tries[rank] += 1
        for rank in waiting:  # without the lock, so that answers do not wait for these threads
            arguments = (rank, ours, deadline)
            threading.Thread(target=self._call, args=arguments, daemon=True).start()

    def _has_to_call(self, rank, ours):
        if rank in self._calling:
            return False
        pause = SECONDS_BETWEEN_ROUNDS
        if not self._is_connected_to(rank):
            if rank not in self.hellos:
                pause = min(pause * self._tries[rank], _SECONDS_BETWEEN_TRIES)
            elif self._reached.get(rank) == self.hellos[rank].run:
                pause = self._seconds_between_updates
        elif not self._agrees_with(rank):
            return False
        elif self._cluster.rank == 0:
            if ours.all_are_connected and self._is_informed_of_end(rank):
                return False
            if not ours.all_are_connected:
                pause = max(_SECONDS_BETWEEN_CHECKS, self._seconds_between_updates)
        elif rank > 0:
            if 0 in self.hellos and self.hellos[0].is_connected_to_all:
                return False
            pause = max(_SECONDS_BETWEEN_CHECKS, self._seconds_between_updates)
        elif not ours.is_connected_to_all or self._is_informed_of_end(rank):
            pause = self._seconds_between_updates
        return time.monotonic() >= self._called.get(rank, -pause) + pause

    def wait(self, seconds: float) -> None:
        """Wait until the rendezvous is over, at most for some seconds."""
        with self._change:
            self._change.wait_for(self.is_over, seconds)

    def wait_for_calls(self, seconds: float) -> None:
        """Wait until the calls that have begun are over, at most for some seconds."""
        with self._change:
            self._change.wait_for(lambda: not self._calling, seconds)

    def _call(self, rank, ours, deadline):
        theirs, failure, unauthenticated, is_refused = None, None, None, False
        try:
            seconds = min(_SECONDS_TO_CONNECT, deadline - time.monotonic())
            where = self._cluster.host_and_port(rank)
            with socket.create_connection(where, max(0.001, seconds)) as connection:
                with self._change:
                    self.failures.setdefault(rank, NO_ANSWER)
                try:
                    theirs = handshake.call(connection, ours, self._secret)
                except TimeoutError:
                    failure = NO_ANSWER
        except ProtocolError:
            failure = ANOTHER_PROGRAM
        except AuthenticationError as error:
            unauthenticated, failure = error.has_secret, UNPROVEN
        except EOFError:
            failure = "the connection was closed at once"
        except TimeoutError:
            failure = os.strerror(errno.ETIMEDOUT)
        except OSError as error:
            failure = error.strerror or str(error)
            is_refused = isinstance(error, ConnectionRefusedError)
        except UnicodeError:
            failure = "not a valid host name"
        with self._change:
            self._calling.discard(rank)
            if is_refused and rank in self.hellos:
                self._unreachable_since.setdefault(rank, time.monotonic())
            else:
                self._unreachable_since.pop(rank, None)
            is_wrong = theirs is not None and theirs.rank != rank
            if is_wrong:
                failure = f"{self._name(theirs)} answers there"
            if unauthenticated is not None:
                self.unauthenticated[rank] = unauthenticated
            if failure is not None:
                self.failures[rank] = failure
            if theirs is not None:
                self._remember(theirs, ours, None if is_wrong else self._reached)
            self._change.notify_all()

    def _name(self, theirs):
        if theirs.run == self._own.run:
            return "this task itself"
        names = self._cluster.names
        return names[theirs.rank] if 0 <= theirs.rank < len(names) else f"task {theirs.rank}"

    def _remember(self, theirs, ours, runs):
        """Note the messages of a handshake, and the direction of the call."""
        rank = theirs.rank
        if rank not in self._others:
            return
        last = self.hellos.get(rank)
        if last is not None and last.run == theirs.run and _progress(last) > _progress(theirs):
            theirs = last  # `theirs` is from a call that began earlier
        self.hellos[rank] = theirs
        self._unreachable_since.pop(rank, None)
        self._different_settings.pop(rank, None)
        settings = self._own.settings, theirs.settings
        for setting in [*settings[0], *settings[1]]:
            if settings[0].get(setting) != settings[1].get(setting):
                self._different_settings.setdefault(rank, setting)
        if runs is not None:
            runs[rank] = theirs.run
        if runs is self._reached:
            self.failures.pop(rank, None)
            self.unauthenticated.pop(rank, None)
        if ours.all_are_connected if self._cluster.rank == 0 else ours.is_connected_to_all:
            self._informed_of_end[rank] = theirs.run

    # ---- callers -------------------------------------------------------------------------------

    def _answer(self, connection):
        hellos, unauthenticated_rank = None, None
        try:
            hellos = handshake.answer(connection, self._own.rank, self._hello_now, self._secret)
        except AuthenticationError as error:
            unauthenticated_rank = error.rank
        except (ProtocolError, EOFError, OSError):
            pass  # another program; or a task that has disconnected, and will call again
        with self._change:
            if hellos is not None:
                self._remember(*hellos, self._callers)
            if unauthenticated_rank in self._others:
                self._failed_authentications.add(unauthenticated_rank)
            self._change.notify_all()

    def _hello_now(self, theirs):
        del theirs
        with self._change:
            return self._hello()


def _progress(hello):
    return hello.is_connected_to_all, hello.all_are_connected
