"""Writes why this worker fails to a file, which the launcher reads. Standard library only."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tf_adasum.errors import WorkerLostError, when_lost

NAME = "TF_ADASUM_ERROR_FILE"  # the environment variable with the file's path
_LONGEST = 10_000  # characters; large, because an error ends with the advice and the code


@dataclasses.dataclass(frozen=True)
class Report:
    """Why a worker has failed.

    Attributes:
        error: the exception, in one line.
        is_because_of_another: whether the reason is that another worker was lost.
        time: when it has failed, by `time.time`.
    """

    error: str
    is_because_of_another: bool
    time: float


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Yield the path of a new folder for the files; "" if no folder can be made."""
    with contextlib.ExitStack() as stack:
        path = ""
        with contextlib.suppress(OSError):
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix="tf_adasum_errors_"))
        yield path


@functools.cache  # at the first call
def begin() -> None:
    """If the launcher reads the file, write the exception that ends this program to the file."""
    path, show = os.environ.get(NAME), sys.excepthook
    if not path:
        return

    def write(error: BaseException) -> None:
        kind = type(error)
        module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
        name = f"{module}{kind.__qualname__}"
        text = f"{name}: {error}".splitlines()[0].removesuffix(": ")
        if str(error).startswith("in user code:"):  # AutoGraph puts the traceback before the text
            text = next(iter(re.findall(r"^ {4}(?!File )(\S.*)", str(error), re.MULTILINE)), text)
        report = Report(text[:_LONGEST], isinstance(error, WorkerLostError), time.time())
        with contextlib.suppress(OSError):  # the launcher has ended, or the disk is full
            Path(path).write_text(json.dumps(dataclasses.asdict(report)))

    def write_and_show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        write(error)
        show(kind, error, trace)

    sys.excepthook = write_and_show
    when_lost.append(write)  # a script may catch the error


def read(path: str) -> Report | None:
    """Return what a worker has written; None if it has not failed, or could not write."""
    try:
        found = json.loads(Path(path).read_text())
        error = "".join(each for each in found["error"] if each.isprintable())
        return Report(error, found["is_because_of_another"] is True, float(found["time"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
