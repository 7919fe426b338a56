"""Describes why this worker fails, and writes it to a file for the launcher.

Standard library only.
"""

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
        is_because_of_another, text = isinstance(error, WorkerLostError), reason_of(error, _LONGEST)
        report = Report(text, is_because_of_another, time.time())
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


def reason_of(error: BaseException, longest: int = 300) -> str:
    """Return an exception as one line; for a `tf.errors.OpError`, the error that caused it."""
    if isinstance(error, SystemExit) and error.code in (0, None):
        return "SystemExit"
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)(:|$)", line)]
    own_lines = _lines_of_a_node(text) or lines
    if len(own_lines) > 1 and own_lines[0].startswith("Exception encountered when calling"):
        own_lines = own_lines[1:]  # Keras's first line names the layer, and the second the error
    line = causes[0] if causes else ": ".join([type(error).__name__, *own_lines[:1]])
    return line if len(line) <= longest else line[:longest] + "…"


def _lines_of_a_node(text: str) -> Any:
    """Return the lines of an error between its traceback and its node; [] without a node."""
    above, node, _ = text.partition("[[{{node")
    if not node:
        return []
    block = re.split(r"\n\s*\n|\bNode: .*\n", above.strip())[-1]
    return [line.strip() for line in block.splitlines() if "root error(s) found" not in line]
