"""Train on several workers of this machine from a notebook: ``tf_adasum.run``.

    notebook: `run`  ->  a launcher: `main`  ->  each worker: the script, or `function_worker.main`

The launcher is a separate process, so that the notebook's process gets no signal handlers, no
threads and no TensorFlow. Uses only the standard library.
"""

import codecs
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from tf_adasum import arguments
from tf_adasum.launch import failures, function_worker
from tf_adasum.launch.jobs import launch
from tf_adasum.launch.processes import Ending
from tf_adasum.launch.worker_process import end_with_parent

_ENDING = "ending.json"


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
        RuntimeError: if a worker failed; the message has the worker's number and its exception, and
            the cell shows the traceback. Also if worker 0 ended before the function returned, or if
            its result cannot be read.

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
        job = (os.getpid(), command, workers, devices_per_worker)
        code = _follow(_entering("run", folder, *job))
        with contextlib.suppress(OSError), open(os.path.join(folder, _ENDING)) as file:
            wrong, failed = json.load(file)
            if wrong:
                raise ValueError(wrong)
            if failed:
                raise RuntimeError(failed)
        if code:
            raise RuntimeError(f"the workers were stopped, with exit status {code}")
        return function_worker.result(folder) if callable(function_or_script) else None


def _of_script(script: Any, args: Sequence) -> list[str]:
    is_path = isinstance(script, (str, os.PathLike))
    expected = "must be a function or the path of a script"
    arguments.check("function_or_script", script, is_path, expected)
    if not os.path.isfile(script):
        raise ValueError(f"script not found: {os.fspath(script)!r} (looked in {os.getcwd()})")
    return [sys.executable, "-u", os.fspath(script), *map(str, args)]


def _entering(module: str, *arguments: Any) -> list[str]:
    """Return the command that runs `main` of a module, with the import path of this process."""
    program = (
        "import json, sys; sys.path[:], arguments = json.loads(sys.argv.pop()); "
        f"from tf_adasum.launch.{module} import main; sys.exit(main(*arguments))"
    )
    return [sys.executable, "-u", "-c", program, json.dumps([sys.path, arguments])]


def _follow(command: Sequence[str]) -> int:
    """Run the launcher, show its output in sys.stdout, and return its exit status."""
    environment, is_interrupted = dict(os.environ), False
    if environment.get("MPLBACKEND", "").startswith("module://"):  # draws into cells
        environment["MPLBACKEND"] = "agg"
    process = subprocess.Popen(
        command,
        bufsize=0,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # this process receives an interrupt, and passes it on
    )
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        while process.poll() is None:
            try:
                while chunk := process.stdout.read(1 << 16):
                    sys.stdout.write(decoder.decode(chunk))  # which may be a notebook's cell
                    sys.stdout.flush()
                process.wait()
            except KeyboardInterrupt:  # the launcher ends the workers; a second one kills them
                is_interrupted = True
                process.send_signal(signal.SIGINT)
    finally:
        process.stdout.close()
        process.terminate()
        process.wait()
    if is_interrupted:
        raise KeyboardInterrupt
    return process.returncode


def main(
    folder: str, parent: int, command: list[str], workers: int, devices_per_worker: int | None
) -> int:
    """Run the job of a notebook, the process `parent`, and return its exit status."""
    end_with_parent(parent, signal.SIGTERM)
    wrong, failed = "", ""
    try:
        ending = launch(command, workers, devices_per_worker, captures_output=True)
    except ValueError as error:
        wrong, ending = str(error), Ending(2)
    if ending.first is not None:
        failed = failures.summary([ending.first])[0]
    # The notebook reads this file when this process has ended.
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _ENDING), "w") as file:
        json.dump([wrong, failed], file)
    return ending
