"""Train on several workers of this machine from a notebook: ``tf_adasum.run``.

    notebook: `run`  ->  a launcher: `main`  ->  each worker: the script, or `function_worker.main`

The launcher is a separate process, so that the notebook's process gets no signal handlers, no
threads and no TensorFlow. Uses only the standard library.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_adasum import arguments
from tf_adasum.launch import function_worker
from tf_adasum.launch.jobs import run_job
from tf_adasum.launch.worker_process import end_with_parent

_JOB, _ENDING = "job.json", "ending.json"


def run(
    function_or_script: Callable | str | os.PathLike,
    workers: int = 4,
    *,
    args: Sequence = (),
    devices_per_worker: int | None = None,
) -> Any:
    """Run a function or a script on several worker processes of this machine.

    Use it in notebooks; in a terminal, use ``tf-adasum-launch``, which starts the same workers. The
    cell shows the output of each worker, with the worker's number, while training runs. If you
    interrupt the cell, the workers end.

    Workers are new processes, so the function has to create its strategy, model and data. It
    receives copies of `args` and of the notebook's global names that it uses. If the function is
    defined in a notebook, install the package cloudpickle.

    Args:
        function_or_script: a function that each worker calls, or the path of a script.
        workers: the number of worker processes. Defaults to 4.
        args: the arguments of the function, or of the script's command line. Defaults to none.
        devices_per_worker: the number of GPUs of each worker; without GPUs, the number of logical
            CPU devices. Defaults to None: an equal share of the visible GPUs, or one CPU device.

    Returns:
        The value that the function returns on worker 0: numbers, arrays, structures of them, or a
        Keras `History` without its model. None for a script.

    Raises:
        ValueError: if an argument cannot be used, or the function cannot be sent to processes.
        ImportError: if the function is defined in a notebook, and cloudpickle is not installed.
        RuntimeError: if a worker failed; the message has the worker's number and its traceback.
            Also if worker 0 ended before the function returned, or if its result cannot be read.

    Example:
        >>> def train(epochs):
        ...     strategy = tf_adasum.AdasumMirroredStrategy()
        ...     with strategy.scope():
        ...         model = keras.Sequential([keras.layers.Dense(1)])
        ...         model.compile("sgd", "mse")
        ...     return model.fit(x, y, epochs=epochs)
        >>> history = run(train, workers=2, args=[3])  # starts processes  # doctest: +SKIP
    """
    arguments.check_count("workers", workers)
    if devices_per_worker is not None:
        arguments.check_count("devices_per_worker", devices_per_worker)
    if isinstance(args, (str, bytes)):  # each letter would be an argument
        raise ValueError(f"`args` must be a list of arguments. Received: args={args!r}")
    with tempfile.TemporaryDirectory(prefix="tf_adasum_") as folder:
        if callable(function_or_script):
            function_worker.write_call(folder, function_or_script, args)
            command = _entering("function_worker", folder)
        else:
            command = _of_script(function_or_script, args)
        job = {
            "command": command,
            "workers": workers,
            "devices_per_worker": devices_per_worker,
            "parent": os.getpid(),
        }
        with open(os.path.join(folder, _JOB), "w") as file:
            json.dump(job, file)
        code = _follow(_entering("run", folder))
        _raise_if_failed(folder, code, workers)
        if not callable(function_or_script):
            return None
        if not function_worker.has_result(folder):
            raise RuntimeError(
                f"worker 0 of {workers} ended with exit status 0 before the function returned"
            )
        return function_worker.read_result(folder)


def _of_script(script: Any, args: Sequence) -> list[str]:
    if not isinstance(script, (str, os.PathLike)):
        raise ValueError(
            "`function_or_script` must be a function or the path of a script. "
            f"Received: function_or_script={script!r}"
        )
    if not os.path.isfile(script):
        raise ValueError(f"script not found: {os.fspath(script)!r} (looked in {os.getcwd()})")
    return [sys.executable, "-u", os.fspath(script), *map(str, args)]


def _entering(module: str, folder: str) -> list[str]:
    """Return the command that runs `main` of a module, with the import path of this process."""
    program = (
        "import json, sys; sys.path[:], folder = json.loads(sys.argv[1]), sys.argv[2]; "
        f"del sys.argv[1:]; from tf_adasum.launch.{module} import main; sys.exit(main(folder))"
    )
    return [sys.executable, "-u", "-c", program, json.dumps(sys.path), folder]


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a notebook's environment without the variables that only a notebook can use."""
    environment = dict(environment)
    if environment.get("MPLBACKEND", "").startswith("module://"):  # draws into cells
        environment["MPLBACKEND"] = "agg"
    return environment


def _follow(command: Sequence[str]) -> int:
    """Run the launcher, show its output on this process's streams, and return its exit status."""
    pipe, is_interrupted = subprocess.PIPE, False
    process = subprocess.Popen(
        command,
        env=_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,  # this process receives an interrupt, and passes it on
    )
    screen = _Screen(process)
    try:
        while True:
            try:
                screen.show()
                process.wait()
                break
            except KeyboardInterrupt:  # the launcher ends the workers; a second one kills them
                is_interrupted = True
                process.send_signal(signal.SIGINT)
    finally:
        screen.close()
        if process.poll() is None:
            process.terminate()
            process.wait()
    if is_interrupted:
        raise KeyboardInterrupt
    return process.returncode


class _Screen:
    """Shows a process's output in sys.stdout and sys.stderr, which may be a notebook's cell."""

    def __init__(self, process: subprocess.Popen):
        self._open = selectors.DefaultSelector()
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            self._open.register(pipe, selectors.EVENT_READ, (name, decoder))

    def show(self) -> None:
        """Show the output until both pipes are closed."""
        while self._open.get_map():
            for key, _ in self._open.select():
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    self._open.unregister(key.fileobj)
                    key.fileobj.close()
                    continue
                name, decoder = key.data
                stream = getattr(sys, name)
                stream.write(decoder.decode(chunk))
                stream.flush()

    def close(self) -> None:
        """Close the pipes."""
        for key in list(self._open.get_map().values()):
            key.fileobj.close()
        self._open.close()


def _raise_if_failed(folder: str, code: int, workers: int) -> None:
    ending = {}
    with contextlib.suppress(OSError), open(os.path.join(folder, _ENDING)) as file:
        ending = json.load(file)
    if ending.get("wrong"):
        raise ValueError(ending["wrong"])
    first = ending.get("first")
    if first:
        error = f": {first['error']}" if first["error"] else ""
        traceback = f"\n\n{first['traceback']}" if first["traceback"] else ""
        raise RuntimeError(
            f"worker {first['rank']} of {workers} failed{first['cause']}{error}{traceback}"
        )
    if code:
        raise RuntimeError(f"the workers were stopped, with exit status {code}")


def main(folder: str) -> int:
    """Run the job that a notebook has written to a folder, and return its exit status."""
    with open(os.path.join(folder, _JOB)) as file:
        job = json.load(file)
    end_with_parent(job["parent"], signal.SIGTERM)
    try:
        ending = run_job(
            job["command"], job["workers"], job["devices_per_worker"], captures_output=True
        )
        outcome, code = {}, ending.code
        if ending.first is not None:
            first, words = ending.first, ending.first.stderr_tail
            outcome["first"] = {
                "rank": first.rank,
                "cause": "" if first.is_stopped else f", with {first.cause}",
                "error": first.error,
                "traceback": words.traceback if words and words.error == first.error else "",
            }
    except ValueError as error:
        outcome, code = {"wrong": str(error)}, 2
    # The notebook reads this file when this process has ended.
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _ENDING), "w") as file:
        json.dump(outcome, file)
    return code
