"""Start workers from a process that has already imported TensorFlow: ``--preload``.

    launcher: `ForkServer`  ->  the fork server: `main`  ->  each worker: `_run`

The launcher sends the arguments, the environment and the streams of a worker, and the fork server
forks it. The worker's parent is a process that ends at once, so Linux makes the launcher the new
parent. The launcher then waits for the worker and signals it like any other child. Uses only the
standard library, except in the fork server, which imports TensorFlow, Keras and tf_adasum.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import importlib
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tf_adasum.launch.cpu_shares import bind
from tf_adasum.launch.worker_process import LIBC, end_with_parent

_MODULES = ("numpy", "tensorflow", "keras", "tf_adasum.strategy", "tf_adasum.callbacks")
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_SECONDS_TO_IMPORT = 300.0
_POLL_SECONDS = 0.001
_PROGRAM = (
    "import json, sys; sys.path[:], modules = json.loads(sys.argv[1]); "
    "from tf_adasum.launch.fork_server import main; main(modules, *map(int, sys.argv[2:]))"
)


class ForkedProcess:
    """A worker that the fork server has started, with the attributes of `subprocess.Popen`.

    Attributes:
        pid: the process id.
        stdout: the pipe from which its output is read; None if it inherits stdout.
        stderr: the same for its errors.
    """

    def __init__(self, pid: int, stdout: BinaryIO | None, stderr: BinaryIO | None):
        self.pid, self.stdout, self.stderr = pid, stdout, stderr

    def wait(self) -> int:
        """Wait for the end; return the exit status, or the negative number of a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """A context manager, with which the launcher starts workers.

    Create it in the main thread, because Linux ends the fork server together with the thread that
    has started it. From then on, this process becomes the parent of all its orphaned descendants.

    Args:
        environment: the environment variables with which TensorFlow is imported.
        modules: the names of the modules to import. Defaults to the modules that a script needs.

    Raises:
        ValueError: if this system is not Linux.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = _MODULES):
        if LIBC is None:
            raise ValueError(f"--preload needs Linux. Received: sys.platform={sys.platform!r}")
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._connection, other = socket.socketpair()
        self._connection.settimeout(_SECONDS_TO_IMPORT)
        with other:
            number = other.fileno()
            arguments = [json.dumps([sys.path, modules]), str(number), str(os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, *arguments],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[number],
                start_new_session=True,  # so that a terminal's Ctrl-C does not reach it
                preexec_fn=functools.partial(end_with_parent, os.getpid()),
            )

    def __enter__(self) -> ForkServer:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the fork server. Its workers continue."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        cpus: set[int],
        captures_output: bool,
    ) -> ForkedProcess:
        """Start a worker. The first call waits until TensorFlow has been imported.

        Args:
            command: Python, its option "-u", and a script with its arguments, or "-m" and a module.
            environment: the worker's complete environment.
            cpus: as for `cpu_shares.bind`.
            captures_output: whether its output goes into pipes, and its input is empty.

        Raises:
            ConnectionError: if the fork server has ended, or does not answer.
        """
        task = {"arguments": command[2:], "environment": dict(environment), "cpus": sorted(cpus)}
        with contextlib.ExitStack() as sent, contextlib.ExitStack() as kept:
            streams, pipes = [0, 1, 2], []
            if captures_output:
                streams = [sent.enter_context(open(os.devnull)).fileno()]
                for _ in range(2):
                    read, write = os.pipe()
                    pipes.append(kept.enter_context(open(read, "rb", buffering=0)))
                    streams.append(sent.enter_context(open(write, "wb", buffering=0)).fileno())
            file = sent.enter_context(open(os.memfd_create("task"), "w+"))
            json.dump(task, file)
            file.flush()
            try:
                socket.send_fds(self._connection, [b"."], [file.fileno(), *streams])
                answer = self._connection.recv(64)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
            except TimeoutError:
                raise ConnectionError(
                    f"--preload: TensorFlow was not imported within {_SECONDS_TO_IMPORT:g} s"
                ) from None
            if not answer:
                raise ConnectionError(
                    "--preload: the process that imports TensorFlow has ended with exit status "
                    f"{self._process.wait()}. Start without --preload"
                )
            kept.pop_all()
        stdout, stderr = pipes or (None, None)
        return ForkedProcess(int(answer), stdout, stderr)


@contextlib.contextmanager
def opened(is_wanted: bool, environment: Mapping[str, str]) -> Iterator[ForkServer | None]:
    """Return a context manager with a `ForkServer`; with None if no server is wanted."""
    if not is_wanted:
        yield None
        return
    with ForkServer(environment) as server:
        yield server


# ---- in the fork server ------------------------------------------------------------------------


def main(modules: Sequence[str], number: int, launcher: int) -> None:
    """Serve the launcher until it closes the connection; in a worker, run its script.

    Args:
        modules: the names of the modules to import.
        number: the file descriptor of the connection.
        launcher: the pid of the launcher.
    """
    with socket.socket(fileno=number) as connection:
        for name in modules:
            with contextlib.suppress(Exception):  # the script will raise it
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # so that a collection in a worker does not copy the memory of the modules
        arguments = _serve(connection, launcher)
    if arguments is not None:
        _run(arguments)


def _serve(connection: socket.socket, launcher: int) -> list[str] | None:
    """Fork workers. Return None at the end; in a worker, return its arguments."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
        if not data:
            return None
        with open(descriptors[0]) as file:
            file.seek(0)
            task = json.load(file)
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of OpenBLAS, which wait
            between = os.fork()
            if not between:
                parent = os.getpid()
                if os.fork():
                    os._exit(0)
                os.close(read)
                _become_worker(task, descriptors[1:], parent, launcher, write)
                return task["arguments"]
        os.close(write)
        os.waitpid(between, 0)
        with open(read, "rb") as pipe:
            pid = pipe.read()
        if not pid:  # no process could be started
            return None
        connection.sendall(pid)
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def _become_worker(
    task: Mapping[str, Any], streams: Sequence[int], parent: int, launcher: int, write: int
) -> None:
    """Make this forked process like a worker that the launcher has started.

    Args:
        task: the message of the launcher.
        streams: the file descriptors of stdin, stdout and stderr.
        parent: the pid of the process that has forked this process, and ends at once.
        launcher: the pid of the next parent.
        write: the pipe for the pid of this process.
    """
    os.setsid()
    os.write(write, str(os.getpid()).encode())
    os.close(write)
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    end_with_parent(launcher)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(task["environment"])
    bind(set(task["cpus"]))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # `random` does this itself


def _run(arguments: Sequence[str]) -> None:
    """Run a script or a module as Python does, in a new ``__main__``."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    if arguments[0] == "-m":
        sys.path[0], name = os.getcwd(), arguments[1]
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        if spec is None or spec.loader is None or spec.origin is None:
            sys.exit(f"{sys.executable}: No module named {name}")
        code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
        module.__spec__, module.__package__ = spec, spec.parent
        sys.argv = [spec.origin, *arguments[2:]]
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        with io.open_code(os.path.abspath(arguments[0])) as file:
            code = compile(file.read(), arguments[0], "exec")
        sys.argv = [*arguments]
    module.__file__ = sys.argv[0]
    try:
        exec(code, module.__dict__)
    except Exception as error:  # the traceback begins in the script, as that of Python
        assert error.__traceback__ is not None
        error = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
