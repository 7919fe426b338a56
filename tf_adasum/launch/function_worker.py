"""A worker that calls a function of a notebook: how the function gets there, and the result back.

Both travel pickled, in a folder that only this user can read; it is the notebook's own function,
and nothing comes from a network. Standard library only, and cloudpickle where there is one.
"""

from __future__ import annotations

import copy
import json
import linecache
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_CALL, _SOURCES, _RESULT = "call.pickle", "sources.json", "result.pickle"


def write_call(folder: str, function: Callable, args: Sequence) -> None:
    """Write a call of a function for the workers.

    Raises:
        ValueError: if the function or its arguments cannot be sent to processes.
        ImportError: if it is no module's, and there is no cloudpickle.
    """
    name = getattr(function, "__qualname__", repr(function))
    is_of_module = getattr(function, "__module__", None) != "__main__" and "<" not in name
    if not is_of_module and not _has_cloudpickle():
        raise ImportError(
            f"A function that is defined in a notebook, such as {name}, needs the package "
            "cloudpickle to get to the workers: pip install cloudpickle. Or write it to a file "
            "(%%writefile train.py), and pass that: tf_adasum.run('train.py')."
        )
    try:
        call = _dumps((function, tuple(args)))
    except Exception as error:  # of any class: objects are pickled by their own code
        raise ValueError(
            f"{name} cannot be sent to the workers, with its arguments and the global names it "
            f"uses: {type(error).__name__}: {error}. Make the strategy, the model and the data "
            f"inside of the function. Received: function_or_script={function!r}"
        ) from error
    with open(os.path.join(folder, _CALL), "wb") as file:
        file.write(call)
    # Cells have no files, but tracebacks show their lines.
    cells = {name: entry[2] for name, entry in linecache.cache.items() if _is_of_cell(entry)}
    with open(os.path.join(folder, _SOURCES), "w") as file:
        json.dump(cells, file)


def has_result(folder: str) -> bool:
    """Return whether the function has returned on worker 0."""
    return os.path.exists(os.path.join(folder, _RESULT))


def read_result(folder: str) -> Any:
    """Return what the function has returned on worker 0.

    Raises:
        RuntimeError: if this process cannot read it.
    """
    with open(os.path.join(folder, _RESULT), "rb") as file:
        try:
            return pickle.load(file)
        except Exception as error:  # of any class: objects are read by their own code
            raise RuntimeError(
                "What the function has returned on worker 0 cannot be read here: "
                f"{type(error).__name__}: {error}. Return numbers, arrays, and structures of them."
            ) from error


def main(folder: str) -> None:
    """Be a worker: call the function; worker 0 writes what it returns."""
    with open(os.path.join(folder, _SOURCES)) as file:
        for name, lines in json.load(file).items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    sys.excepthook = _show  # Python's own reads files, and there are none of cells
    with open(os.path.join(folder, _CALL), "rb") as file:
        function, args = pickle.load(file)
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})  # it may change that
    result = function(*args)
    if task.get("index", 0) == 0:
        with open(os.path.join(folder, _RESULT), "wb") as file:
            file.write(_result(result))


def _result(value: Any) -> bytes:
    if type(value).__name__ == "History" and "model" in dir(value):  # of Keras, from `fit`
        value = copy.copy(value)
        for name in {"model", "_model"} & vars(value).keys():
            setattr(value, name, None)
    try:
        return _dumps(value)
    except Exception as error:  # of any class, as above
        raise ValueError(
            f"What the function has returned cannot be sent to the notebook: {error}. Return "
            f"numbers, arrays, and structures of them. Received: {type(value)}"
        ) from error


def _dumps(value: Any) -> bytes:
    if _has_cloudpickle():
        import cloudpickle

        return cloudpickle.dumps(value)
    return pickle.dumps(value)


def _has_cloudpickle() -> bool:
    try:
        import cloudpickle  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def _is_of_cell(entry: tuple) -> bool:
    return len(entry) == 4 and entry[1] is None  # no time of a file's last change


def _show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Write a traceback without the frames of this file and before."""
    own = os.path.abspath(__file__)
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename in (own, "<string>"):
        rest = rest.tb_next
    traceback.print_exception(kind, error, rest or trace)
