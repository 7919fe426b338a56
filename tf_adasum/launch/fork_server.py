"""Start workers from a process that has already imported TensorFlow: ``--preload``.

    launcher: `ForkServer`  ->  the fork server: `main`  ->  each worker: `_run`

The launcher sends the arguments, the environment and the streams of a worker to the fork server. An
intermediate process forks the worker and exits. Linux then makes the launcher the parent, so the
launcher waits for the worker and signals it like any other child. Uses only the standard library,
except in the fork server, which imports TensorFlow, Keras and tf_adasum.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tf_adasum.cluster import json_lines
from tf_adasum.launch.cpu_shares import bind
from tf_adasum.launch.worker_process import LIBC, end_with_parent, open_standard_streams

_MODULES = ("numpy", "tensorflow", "keras", "tf_adasum.strategy", "tf_adasum.callbacks")
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # <linux/prctl.h>
_SECONDS_TO_ANSWER = 30.0
_SECONDS_TO_END = 1.0
_READY, _FAILED = b"ready", b"!"  # the first bytes of an error message
_POLL_SECONDS = 0.001
_PROGRAM = (
    "import sys; sys.path = [folder for folder in sys.path if folder]; "
    "import json; sys.path[:], modules = json.loads(sys.argv[1]); "
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
        """Wait for the end; return the exit status, or minus the number of the signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """A context manager that starts workers as forks of a process that has imported TensorFlow.

    Create it in the main thread, because Linux ends the fork server together with the thread that
    has started it. Until it is closed, this process becomes the parent of its orphaned descendants.

    Args:
        environment: the environment variables with which TensorFlow is imported.
        modules: the names of the modules to import. Defaults to the modules that a script needs.

    Raises:
        ValueError: if this system is not Linux.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = _MODULES):
        if LIBC is None:
            raise ValueError(f"--preload needs Linux. Received: sys.platform={sys.platform!r}")
        self._was_subreaper = ctypes.c_int()
        LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(self._was_subreaper))
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._environment, self._modules = dict(environment), modules
        self._begin()

    def _begin(self):
        """Start the process that imports the modules."""
        self._is_ready = False
        open_standard_streams()
        self._connection, other = socket.socketpair()
        self._connection.settimeout(_SECONDS_TO_ANSWER)
        with other:
            descriptor = other.fileno()
            arguments = [json.dumps([sys.path, self._modules]), str(descriptor), str(os.getpid())]
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _PROGRAM, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[descriptor],
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
        assert LIBC is not None
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, self._was_subreaper.value)

    def is_ready(self) -> bool:
        """Return whether the modules have been imported.

        If the fork server has ended after the imports, for example because the system has run out
        of memory, it is started again. Call this method in the main thread.

        Raises:
            ConnectionError: if an import has failed, or the fork server has ended before.
        """
        if self._is_ready and self._process.poll() is not None:
            self._connection.close()
            self._begin()
        if not self._is_ready and json_lines.wait([self._connection], 0.0):
            self._is_ready = self._answer() == _READY
        return self._is_ready

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        cpus: set[int],
        captures_output: bool,
    ) -> ForkedProcess:
        """Start a worker when `is_ready` has returned True.

        Args:
            command: Python, its option "-u", and a script with its arguments, or "-m" and a module.
            environment: the worker's complete environment.
            cpus: as for `cpu_shares.bind`.
            captures_output: whether its output goes into pipes, and its input is empty.

        Raises:
            ConnectionError: if the fork server has ended, or does not answer.
            ValueError: if the command is another one.
        """
        if list(command[:2]) != [sys.executable, "-u"] or len(command) < 3:
            raise ValueError(
                f"--preload: expected a command that begins with {sys.executable} -u. "
                f"Received: {' '.join(command)}"
            )
        task = {"arguments": command[2:], "environment": dict(environment), "cpus": sorted(cpus)}
        with contextlib.ExitStack() as always_closed, contextlib.ExitStack() as closed_on_error:
            streams, pipes = [0, 1, 2], []
            if captures_output:
                streams = [always_closed.enter_context(open(os.devnull)).fileno()]
                for _ in range(2):
                    read, write = os.pipe()
                    pipes.append(closed_on_error.enter_context(open(read, "rb", buffering=0)))
                    file = always_closed.enter_context(open(write, "wb", buffering=0))
                    streams.append(file.fileno())
            task_file = always_closed.enter_context(open(os.memfd_create("task"), "w+"))
            json.dump(task, task_file)
            task_file.flush()
            descriptors = [task_file.fileno(), *streams]
            with contextlib.suppress(BrokenPipeError):  # `_answer` raises an error
                socket.send_fds(self._connection, [b"."], descriptors)
            pid = int(self._answer())
            closed_on_error.pop_all()
        stdout, stderr = pipes or (None, None)
        return ForkedProcess(pid, stdout, stderr)

    def _answer(self) -> bytes:
        """Return the next message of the fork server."""
        answer = b""
        try:
            answer = self._connection.recv(1 << 12)
        except ConnectionResetError:
            pass
        except TimeoutError:
            raise ConnectionError(
                "--preload: the process that has imported TensorFlow does not answer. Remove "
                "--preload"
            ) from None
        if answer.startswith(_FAILED):
            raise ConnectionError(f"--preload: {answer.removeprefix(_FAILED).decode()}")
        if not answer:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
            raise ConnectionError(
                "--preload: the process that imports TensorFlow has ended (exit status "
                f"{self._process.returncode}). Remove --preload"
            )
        return answer


@contextlib.contextmanager
def optional_server(is_wanted: bool, environment: Mapping[str, str]) -> Iterator[ForkServer | None]:
    """Yield a `ForkServer`, or None if no server is wanted."""
    if not is_wanted:
        yield None
        return
    with ForkServer(environment) as server:
        yield server


# ---- in the fork server ------------------------------------------------------------------------


def main(modules: Sequence[str], descriptor: int, launcher: int) -> None:
    """Serve the launcher until it closes the connection; in a worker, run its script.

    Args:
        modules: the names of the modules to import.
        descriptor: the file descriptor of the connection.
        launcher: the pid of the launcher.
    """
    given = set(os.environ)
    own_folder = [] if _is_safe_path() else [sys.path.pop(0)]  # of the launcher, not of the script
    with socket.socket(fileno=descriptor) as connection:
        for name in modules:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:  # the script will raise it
                pass
            except Exception as error:
                why = f"{name} cannot be imported: {type(error).__name__}: {error}"
                connection.sendall(_FAILED + why.encode()[:1000])
                return
        sys.path[:0] = own_folder
        added = {name: value for name, value in os.environ.items() if name not in given}
        gc.collect()
        gc.freeze()  # so that a collection in a worker does not copy the memory of the modules
        connection.sendall(_READY)
        arguments = _serve(connection, launcher, added)
    if arguments is not None:
        _run_script(arguments)


def _serve(connection: socket.socket, launcher: int, added: Mapping[str, str]) -> list[str] | None:
    """Fork workers. Return None at the end; in a worker, return its arguments.

    Args:
        connection: the connection to the launcher.
        launcher: the pid of the launcher.
        added: the environment variables that the imports have set.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, 1, 4)
        if not data:
            return None
        with open(descriptors[0]) as file:
            file.seek(0)
            task = json.load(file)
        task["environment"] = {**added, **task["environment"]}
        pid_reader, pid_writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # OpenBLAS's threads are idle
            intermediate = os.fork()
            if not intermediate:
                parent = os.getpid()
                if os.fork():
                    os._exit(0)
                os.close(pid_reader)
                _become_worker(task, descriptors[1:], parent, launcher, pid_writer)
                return task["arguments"]
        os.close(pid_writer)
        os.waitpid(intermediate, 0)
        with open(pid_reader, "rb") as pipe:
            pid = pipe.read()
        connection.sendall(pid or _FAILED + b"no worker can be forked")
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def _become_worker(
    task: Mapping[str, Any], streams: Sequence[int], parent: int, launcher: int, pid_writer: int
) -> None:
    """Make this forked process like a worker that the launcher has started.

    Args:
        task: the message of the launcher.
        streams: the file descriptors of stdin, stdout and stderr.
        parent: the pid of the intermediate process.
        launcher: the pid of the next parent.
        pid_writer: the pipe for the pid of this process.
    """
    os.setsid()
    os.write(pid_writer, str(os.getpid()).encode())
    os.close(pid_writer)
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


def _run_script(arguments: Sequence[str]) -> None:
    """Run a script or a module as Python does, in a new ``__main__``."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    for name in {"__main__", "__mp_main__"} & set(sys.modules):  # the latter is of multiprocessing
        sys.modules[name] = module
    is_module = arguments[0] == "-m"
    path = os.path.abspath(arguments[0])
    if not _is_safe_path():
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(path))
    sys.argv = [*arguments]
    try:
        if is_module:
            code, module.__spec__ = _code_of_module(arguments[1])
            module.__package__, path = module.__spec__.parent, module.__spec__.origin or ""
            sys.argv = [path, *arguments[2:]]
        elif os.path.isdir(path) or not path.endswith(".py"):  # also archives and compiled files
            runpy.run_path(path, run_name="__main__")
            return
        else:
            with io.open_code(path) as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
        module.__file__ = path
        exec(code, module.__dict__)
    except Exception as error:  # the traceback begins in the script, as Python's does
        assert error.__traceback__ is not None
        error = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _is_safe_path() -> bool:
    """Return whether Python does not put the folder of the script into `sys.path`."""
    return getattr(sys.flags, "safe_path", False)


def _code_of_module(name: str) -> tuple[Any, Any]:
    """Return the code and the spec of a module, or of the ``__main__`` of a package."""
    spec = importlib.util.find_spec(name)
    if spec and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    return spec.loader.get_code(spec.name), spec  # type: ignore[attr-defined]
