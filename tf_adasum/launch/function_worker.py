"""Call a function of a notebook in worker processes, and send the result to the notebook.

The function and its result are pickled in a folder that only this user can read. Both come from the
user's own processes, not from a network. Uses only the standard library, and cloudpickle if it is
installed.
"""

import copy
import json
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

_CALL, _RESULT = "call.pickle", "result.pickle"


def write_call(folder: str, function: Callable, args: Sequence) -> None:
    """Write a function and its arguments to a folder, from which the workers read them.

    Raises:
        ValueError: if the function or its arguments cannot be sent to processes.
        ImportError: if the function is not defined in a module, and cloudpickle is not installed.
    """
    name = getattr(function, "__qualname__", repr(function))
    is_of_module = getattr(function, "__module__", None) != "__main__" and "<" not in name
    if not is_of_module and _pickler() is pickle:
        raise ImportError(
            f"A function that is defined in a notebook, such as {name}, can be sent to the workers "
            "only with the package cloudpickle: pip install cloudpickle. Or write the function to "
            "a file (%%writefile train.py), and pass the file: tf_adasum.run('train.py')."
        )
    try:
        call = _pickler().dumps((function, tuple(args)))
    except Exception as error:  # of any class: objects are pickled by their own code
        raise ValueError(
            f"{name} cannot be sent to the workers with its arguments and the global names that it "
            f"uses: {type(error).__name__}: {error}. Create the strategy, the model and the data "
            f"inside the function. Received: function_or_script={function!r}"
        ) from error
    with open(os.path.join(folder, _CALL), "wb") as file:
        file.write(call)


def result(folder: str) -> Any:
    """Return the value that the function returned on worker 0.

    Raises:
        RuntimeError: if there is no value, or this process cannot read it.
    """
    path = os.path.join(folder, _RESULT)
    if not os.path.exists(path):
        raise RuntimeError("worker 0 ended with exit status 0 before the function returned")
    with open(path, "rb") as file:
        try:
            return pickle.load(file)
        except Exception as error:  # of any class: objects are read by their own code
            raise RuntimeError(
                "The value that the function returned on worker 0 cannot be read in this process: "
                f"{type(error).__name__}: {error}. Return numbers, arrays, or structures of them."
            ) from error


def main(folder: str) -> None:
    """Call the function in a worker process; worker 0 writes the returned value to the folder."""
    with open(os.path.join(folder, _CALL), "rb") as file:
        function, args = pickle.load(file)
    # Read before the call, because the function may change TF_CONFIG.
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
    value = function(*args)
    if task.get("index", 0) == 0:
        with open(os.path.join(folder, _RESULT), "wb") as file:
            file.write(_result(value))


def _result(value: Any) -> bytes:
    if type(value).__name__ == "History" and "model" in dir(value):  # of Keras, from `fit`
        value = copy.copy(value)
        for name in {"model", "_model"} & vars(value).keys():
            setattr(value, name, None)
    try:
        return _pickler().dumps(value)
    except Exception as error:  # of any class, as above
        raise ValueError(
            f"The value that the function returned cannot be sent to the notebook: {error}. Return "
            f"numbers, arrays, or structures of them. Received: {type(value)}"
        ) from error


def _pickler() -> Any:
    """Return the module cloudpickle; pickle if cloudpickle is not installed."""
    try:
        import cloudpickle
    except ModuleNotFoundError:
        return pickle
    return cloudpickle
