"""Connect to a host of ``--hosts`` over ssh, and run the launcher on the host.

    this machine: `Connection` -> ssh -> the host: `serve` -> `jobs.launch`

Private values, such as the secret, are sent through ssh's stdin, because every user of a host can
read the arguments of its processes. A host ends its workers if this stdin is closed, or if it
receives nothing for 30 seconds. Uses only the standard library.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from tf_adasum.cluster import ports
from tf_adasum.environment_variables import SECRET, SECRET_FILE
from tf_adasum.launch.environments import automatic_workers
from tf_adasum.launch.failures import EXIT_USAGE
from tf_adasum.launch.jobs import launch
from tf_adasum.launch.nodes import Host, Nodes
from tf_adasum.launch.output import PROGRAM
from tf_adasum.launch.worker_process import end_with_parent, start_thread

SECONDS_BETWEEN_BEATS = 5.0
_HEARTBEAT_TIMEOUT = 30.0  # after which a host declares the connection lost
_SECONDS_TO_REACH = 9.0  # for ssh to log in
_SECONDS_TO_START = 60.0  # for Python and this package, which may lie on a slow file system
_SECONDS_FOR_A_REASON = 0.5
_SECONDS_FOR_THE_JOB = 90.0  # which is sent when all hosts are ready

_OPTIONS = (
    *("-T", "-x", "-oBatchMode=yes", f"-oConnectTimeout={_SECONDS_TO_REACH - 1:.0f}"),
    *("-oServerAliveInterval=5", "-oServerAliveCountMax=3"),
    *("-oRemoteCommand=none", "-oClearAllForwardings=yes"),
)
_REACHED, _READY = "tf_adasum: reached", "tf_adasum: ready "
# For any shell: no single quote, no "!", one line.
_BOOTSTRAP = (
    'import json, sys; stdin = open(0, "rb", 0); sent = json.loads(stdin.readline()); '
    'sys.path[:] = sent["path"]; from tf_adasum.launch import ssh; '
    "sys.exit(ssh.serve(stdin, sent))"
)


# ---- on this machine ---------------------------------------------------------------------------


class Connection:
    """An ssh process. When it ends, the workers on the host end.

    Args:
        host: the host.
        program: the ssh command.
        sent: the values that `serve` needs before it is ready.

    Attributes:
        host: the host.
        process: the process of ssh.
        ended: set when ssh has ended.
        answer: the values that the host sent when it was ready; None before it is ready.
        is_reached: whether ssh has logged in.
        failure: why the host cannot start workers, as ssh or Python printed it; "" without failure.
    """

    def __init__(self, host: Host, program: Sequence[str], sent: Mapping[str, Any]):
        self.host, self.ended = host, threading.Event()
        self.answer: Any = None
        self.is_reached, self.failure = False, ""
        self._sent, self._said, self._errors = sent, "", b""
        self._deadline = time.monotonic() + _SECONDS_TO_REACH
        python = f"{shlex.quote(sys.executable)} -u -c {shlex.quote(_BOOTSTRAP)}"
        self.process: Any = subprocess.Popen(
            [*program, *_OPTIONS, "--", host.name, f"echo {_REACHED}; exec {python}"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # this process receives an interrupt, and passes it on
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )

    def __enter__(self) -> Connection:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End ssh, which ends the workers."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def send(self, line: str) -> None:
        """Send a line to the host; nothing happens if the connection is lost."""
        data = memoryview(f"{line}\n".encode())
        with contextlib.suppress(OSError):
            while data:
                data = data[self.process.stdin.write(data) :]

    def take(self, stream: Any, chunk: bytes) -> None:
        """Take in output of ssh before the host is ready; an empty chunk ends a stream."""
        if stream is self.process.stderr:
            self._errors += chunk
            return
        if not chunk:  # ssh ends, and may still print why
            self._deadline = min(self._deadline, time.monotonic() + _SECONDS_FOR_A_REASON)
        self._said += chunk.decode(errors="replace")
        if not self.is_reached and f"{_REACHED}\n" in self._said:
            self.is_reached, self._deadline = True, time.monotonic() + _SECONDS_TO_START
            self.send(json.dumps(self._sent))
        *_, ready = self._said.partition(_READY)
        if self.answer is None and ready.endswith("\n"):
            self.answer = json.loads(ready)
            os.write(2, self._errors)  # warnings of ssh

    def seconds_left(self) -> float:
        """Return how long to wait for the host; if no time is left, set `failure`."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            lines = self._errors.decode(errors="replace").splitlines()
            last_line = next(
                (line.strip() for line in reversed(lines) if line.strip()), "no answer"
            )
            self.failure = last_line.rstrip(".")
        return max(0.0, left)


# ---- on the host -------------------------------------------------------------------------------


def serve(stdin: BinaryIO, sent: Mapping[str, Any]) -> int:
    """Run the launcher of one host when all hosts are ready, and return its exit status.

    Args:
        stdin: the stream from a `Connection`.
        sent: the values in the first line of this stream.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # even if sshd ignores them
        signal.signal(number, signal.SIG_DFL)
    os.chdir(sent["folder"])
    if SECRET in sent["environment"]:
        os.environ.pop(SECRET_FILE, None)  # this host's own
    os.environ.update(sent["environment"])
    with ports.free_ports(1) as (port,):
        workers = automatic_workers(os.environ, sent["devices_per_worker"])
        # "client's address, its port, server's address, its port"
        address = os.environ.get("SSH_CONNECTION", "").split(" ")[2:3]
        answer = {"address": "".join(address), "port": port, "workers": workers}
        print(f"{_READY}{json.dumps(answer)}", flush=True)
        is_sent = select.select([stdin], [], [], _SECONDS_FOR_THE_JOB)[0]
        line = stdin.readline() if is_sent else b""
        if not line:  # another host cannot be reached, or the launcher's machine is lost
            return EXIT_USAGE
        nodes, job = json.loads(line)
        control = os.dup(stdin.fileno())
        with open(os.devnull) as nothing:  # the stdin of workers that inherit stdin
            os.dup2(nothing.fileno(), 0)
        start_thread(_obey, control)
        try:
            return launch(**job, nodes=Nodes(**nodes))
        except (ValueError, ConnectionError) as error:
            print(f"{PROGRAM}: host {sent['name']}: {error}", file=sys.stderr)
            return EXIT_USAGE


def _obey(control: int) -> None:
    """Send this process each signal that a `Connection` names, and SIGHUP if ssh is lost."""
    pending = b""
    while select.select([control], [], [], _HEARTBEAT_TIMEOUT)[0]:
        chunk = os.read(control, 1 << 10)
        if not chunk:
            break
        *lines, pending = (pending + chunk).split(b"\n")
        for line in filter(None, lines):
            os.kill(os.getpid(), signal.Signals[line.decode()])
    os.kill(os.getpid(), signal.SIGHUP)
