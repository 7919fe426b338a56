"""Run workers on several hosts: `launch_on` starts a launcher on each host, over ssh.

Reading order: `launch_on` (the whole job) -> `ssh` (one host) -> `_Hosts` (waits until all hosts
have ended). Uses only the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import secrets
import selectors
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tf_adasum.cluster import own_address, secret
from tf_adasum.cluster.addresses import joined
from tf_adasum.environment_variables import SECRET, SSH
from tf_adasum.errors import see
from tf_adasum.launch.failures import EXIT_STOP_REQUESTED, StderrTail
from tf_adasum.launch.jobs import check
from tf_adasum.launch.nodes import Host, Nodes
from tf_adasum.launch.output import Console, Relay
from tf_adasum.launch.processes import BACKUP_GRACE_SECONDS
from tf_adasum.launch.signals import signals_sent_to
from tf_adasum.launch.ssh import SECONDS_BETWEEN_BEATS, Connection
from tf_adasum.launch.worker_process import report_end, start_thread

_SECONDS_TO_END = BACKUP_GRACE_SECONDS + 15.0
_SECONDS_TO_READ = 5.0  # how long to wait until our output is read
_LOST = 255  # ssh's exit status for its own errors
# Variables that belong to a login session or to a scheduler's task on this machine.
_NOT_PASSED = re.compile(
    r"(SSH|XDG|DBUS|SLURM|PMI|PMIX|OMPI)_.*|HOME|HOSTNAME|LOGNAME|MAIL|OLDPWD|PWD|SHELL|SHLVL|"
    r"TERM|TMPDIR|USER|DISPLAY|XAUTHORITY|_|TF_ADASUM_SECRET_FILE"
)


def launch_on(
    hosts: Sequence[Host],
    command: Sequence[str],
    workers: int | None = None,
    devices_per_worker: int | None = None,
    coordinator: str | None = None,
    **settings: Any,
) -> int:
    """Run `command` on several hosts until all workers have ended.

    No worker outlives this call: a host stops its workers if its connection breaks or this process
    ends.

    Args:
        hosts: the hosts, in the order of the ranks. Each host needs the working directory and the
            Python of this machine, at the same paths.
        command: the complete argument vector of a worker.
        workers: the number of workers of a host for which `hosts` has no number. Defaults to None:
            one worker for each GPU.
        devices_per_worker: as for `jobs.launch`.
        coordinator: "host:port" of worker 0. Defaults to None: the address at which ssh reaches the
            first host, and a free port.
        **settings: timeout, max_restarts, log_dir, verbose, bind_to and preload, as for
            `jobs.launch`.

    Returns:
        The exit status that `jobs.launch` returns, or 255 if a connection was lost.

    Raises:
        ValueError: if an argument cannot be used.
        ConnectionError: if a host cannot be reached, or cannot start workers. No worker was
            started.
    """
    check(command, 1 if workers is None else workers, settings["timeout"], settings["max_restarts"])
    if coordinator is not None:
        Nodes(len(hosts), 0, coordinator)  # raises if the address is wrong
    program = shlex.split(os.environ.get(SSH) or "ssh")
    if not program or not shutil.which(program[0]):
        raise ValueError(f"--hosts needs OpenSSH's client on the PATH. Received: {program}")
    sent = {
        "path": [os.path.abspath(folder) for folder in sys.path],
        "folder": os.getcwd(),
        "environment": _environment(os.environ),
        "devices_per_worker": devices_per_worker,
    }
    settings |= {"command": [*command], "devices_per_worker": devices_per_worker}
    events: queue.SimpleQueue = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(Connection(host, program, {**sent, "name": host.name}))
            for host in hosts
        ]
        _wait_until_ready(connections, program)
        counts = [each.host.workers or workers or each.answer["workers"] for each in connections]
        if len(hosts) > 1:
            coordinator = coordinator or _coordinator(connections)
        with signals_sent_to(events):
            for rank, (connection, count) in enumerate(zip(connections, counts, strict=True)):
                nodes = dataclasses.asdict(Nodes(len(hosts), rank, coordinator, counts))
                connection.send(json.dumps([nodes, {**settings, "num_workers": count}]))
            return _Hosts(connections, events).run()


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hosts receive, including the user's secret or a new secret."""
    key = os.fsdecode(secret.read(environment).key) or secrets.token_hex(32)
    passed = {name: environment[name] for name in environment if not _NOT_PASSED.fullmatch(name)}
    return {**passed, SECRET: key}


def _wait_until_ready(connections: Sequence[Connection], program: Sequence[str]) -> None:
    """Wait until all hosts are ready.

    Raises:
        ConnectionError: if hosts cannot start workers; the message has their names and the reasons.
    """
    with selectors.DefaultSelector() as selector:
        for each in connections:
            for stream in (each.process.stdout, each.process.stderr):
                selector.register(stream, selectors.EVENT_READ, each)
        while waiting := [each for each in connections if each.answer is None and not each.failure]:
            for key, _ in selector.select(min(each.seconds_left() for each in waiting)):
                chunk = os.read(key.fd, 1 << 16)
                key.data.take(key.fileobj, chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
    out_of_reach = [each for each in connections if each.failure and not each.is_reached]
    if out_of_reach:
        raise ConnectionError(
            f"hosts that cannot be reached by ssh: {_listed(out_of_reach)}. Nothing was started. "
            f"Make sure that `{shlex.join(program)} HOST true` succeeds without asking for a "
            f"password or a confirmation {see('TFA-214')}"
        )
    failed = [each for each in connections if each.failure]
    if failed:
        raise ConnectionError(
            f"hosts that cannot start workers: {_listed(failed)}. Nothing was started. Each host "
            f"needs {sys.executable} with tf_adasum, and the directory {os.getcwd()}, at the same "
            f"paths as this machine {see('TFA-214')}"
        )


def _listed(connections: Sequence[Connection]) -> str:
    return ", ".join(f"{each.host.name} ({each.failure})" for each in connections)


def _coordinator(connections: Sequence[Connection]) -> str:
    """Return the address at which ssh reaches the first host, with a free port."""
    addresses = [each.answer["address"] or each.host.name.split("@")[-1] for each in connections]
    are_local = [own_address.is_loopback(address) for address in addresses]
    if are_local[0] and not all(are_local):
        raise ConnectionError(
            f"ssh reaches host {connections[0].host.name} at {addresses[0]}, but the other hosts "
            "cannot reach it there. Pass an address that they can reach: --coordinator HOST:PORT "
            f"{see('TFA-214')}"
        )
    return joined(addresses[0], connections[0].answer["port"])


class _Hosts:
    """Supervises the launchers on the hosts of one job until the last launcher has ended."""

    def __init__(self, connections: Sequence[Connection], events: queue.SimpleQueue):
        self._running, self._events, self._console = [*connections], events, Console(events)
        self._code = 0
        self._is_asked = False  # whether workers ended because they were asked to, with a backup
        self._is_stopped = False  # whether a signal to this process stops the job
        self._until = float("inf")
        self._threads = []
        for each in connections:
            for stream, descriptor in ((each.process.stdout, 1), (each.process.stderr, 2)):
                relay = Relay(
                    descriptor,
                    self._console,
                    prefix=b"",  # each host's launcher writes it
                    redraws=each is connections[0],
                    hides_noise=False,
                    stderr_tail=StderrTail(),
                    log=None,
                )
                self._threads.append(start_thread(relay.copy, stream, each.ended))
            start_thread(report_end, each, events)

    def run(self) -> int:
        """Pass on output and signals, and return the exit status."""
        while self._running:
            try:
                event = self._events.get(timeout=SECONDS_BETWEEN_BEATS)
            except queue.Empty:
                self._send("")
                if time.monotonic() > self._until:
                    for each in self._running:
                        each.process.kill()
                continue
            if isinstance(event, Connection):
                self._take_end(event)
            elif event is signal.SIGUSR1:
                self._send(event.name)
            else:
                self._is_stopped, self._code = True, self._code or 128 + event
                self._stop(signal.SIGTERM if event is signal.SIGPIPE else event)
        for thread in self._threads:
            thread.join(_SECONDS_TO_READ)
        self._console.finish(_SECONDS_TO_READ)
        return (
            EXIT_STOP_REQUESTED
            if self._is_asked and (self._is_stopped or not self._code)
            else self._code
        )

    def _take_end(self, connection: Connection) -> None:
        code = connection.process.wait()
        connection.ended.set()
        self._running.remove(connection)
        self._is_asked |= code == EXIT_STOP_REQUESTED
        if code in (0, EXIT_STOP_REQUESTED) or self._code:
            return
        self._code = code if code > 0 else 128 - code
        cause = f"exited with status {code}"
        if code == _LOST:
            cause += ", or the ssh connection was lost"
        elif code == -signal.SIGKILL:
            cause = "the ssh connection was lost"
        stopping = ", stopping the other hosts" if self._running else ""
        self._console.say(f"host {connection.host.name}: {cause}{stopping}")
        self._stop(signal.SIGHUP)

    def _stop(self, number: signal.Signals) -> None:
        self._until = min(self._until, time.monotonic() + _SECONDS_TO_END)
        self._send(number.name)

    def _send(self, line: str) -> None:
        for each in self._running:
            each.send(line)
