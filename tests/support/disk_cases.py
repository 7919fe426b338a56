"""Faults of the disk with the backups: the rows of a table, and tests.

A training is started, something happens, and it is started again. In every start every worker has
to train to the weights of an unbroken run, bit for bit, or an error that names a file or a worker
comes within a bound; in the last start it has to train.
"""

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable

from support.disk import Disk
from support.pace import PACE
from support.worker_group import (
    free_ports,
    read_worker_report,
    start_worker_script,
    worker_environment,
)

WORKERS = {"adasum": 2, "keras": 1}
WITHIN = 45.0  # seconds from the beginning of `fit`, on a busy machine
LIMIT = 100.0 * PACE  # seconds of a start, to the end of its processes
WIDTH = 512  # a backup takes 2 MiB
KERAS_FILES = ("latest.weights.h5", "training_metadata.json")
_interrupting = threading.Lock()


@dataclasses.dataclass
class Outcome:
    """What has become of one worker in one start.

    Attributes:
        error: type of the exception; None if it trained to the end.
        message: of the exception.
        digest: of the weights, if it trained to the end.
        seconds: from the beginning of `fit`; None if it said nothing, or had not come so far.
        first: the epoch in which it began; None if it has not.
        code: exit status.
        output: everything it wrote.
    """

    error: str | None
    message: str
    digest: str | None
    seconds: float | None
    first: int | None
    code: int | None
    output: str


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of all workers.

    Attributes:
        before: function of the `Disk`: what happens before.
        fault: what happens meanwhile, see `disk_worker`.
        width: of the model.
        killed: whether worker 0 gets a signal, and reports nothing.
    """

    before: Callable = lambda disk: None
    fault: str | None = None
    width: int = WIDTH
    killed: bool = False


@dataclasses.dataclass(frozen=True)
class Case:
    """What happens to a disk.

    Attributes:
        name: a row of the table.
        starts: tuple of `Start`.
        options: of mount(8) for the disk; "": a directory.
        backup_dir: of each worker, on the disk.
        interrupted: whether there is a training already that was killed after two epochs, with
            these backups, of the width of the first start.
        strategies: which of them it can happen to.
    """

    name: str
    starts: tuple = (Start(),)
    options: str = ""
    backup_dir: str = "backup"
    interrupted: bool = False
    strategies: tuple = ("adasum", "keras")


# What happens, as functions of the disk.


def backups_of(disk):
    return disk.seen / "backup"


def make_file(disk):
    backups_of(disk).write_text("a file\n")


def remove(disk):
    """Remove whatever is there."""
    if backups_of(disk).is_dir():
        shutil.rmtree(backups_of(disk))
    else:
        backups_of(disk).unlink()


def newest(disk):
    """Return the file of the newest backup."""
    of_keras = backups_of(disk) / KERAS_FILES[0]
    if of_keras.exists():
        return of_keras
    return max(backups_of(disk).glob("*.backup"), key=lambda path: path.name)


def change_newest(change):
    """A function that changes the bytes of the newest backup."""

    def changing(disk):
        path = newest(disk)
        path.write_bytes(change(path.read_bytes()))

    return changing


def with_a_byte_changed(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


def write_nonsense(disk):
    """Make the newest backup say that 10^15 epochs are done, with a digest that is right."""
    path = newest(disk)
    if path.name == KERAS_FILES[0]:
        path = path.with_name(KERAS_FILES[1])
        path.write_text(json.dumps({**json.loads(path.read_text()), "epoch": 10**15}))
        return
    head, facts, arrays = path.read_bytes().split(b"\n", 2)
    rest = json.dumps({**json.loads(facts), "epoch": 10**15}).encode() + b"\n" + arrays
    digest = hashlib.sha256(rest).hexdigest().encode()
    path.write_bytes(head[: -len(digest)] + digest + b"\n" + rest)


def move_to(rank):
    """A function that makes the backups those of one worker alone."""
    return lambda disk: backups_of(disk).rename(disk.seen / f"backup-{rank}")


def after_two_epochs(name, before, **options):
    return Case(name, (Start(before),), interrupted=True, **options)


UNBROKEN = Case("nothing")

CASES = [
    Case("the directory is a file", (Start(make_file), Start(remove))),
    Case(
        "the directory is on a read-only file system",
        (Start(), Start(lambda disk: disk.remount("rw"))),
        options="ro",
    ),
    Case(
        "the disk has room for one backup, not for two; then it has",
        (Start(), Start(lambda disk: disk.remount("size=20m"))),
        options="size=3m",
    ),
    Case(
        "the disk gets full after the first backup; then it has room",
        (Start(fault="fills"), Start(lambda disk: (disk.seen / "filler").unlink())),
        options="size=8m",
    ),
    after_two_epochs(
        "the newest backup is cut in half", change_newest(lambda data: data[: len(data) // 2])
    ),
    after_two_epochs("one bit of the newest backup is flipped", change_newest(with_a_byte_changed)),
    after_two_epochs("the newest backup is empty", change_newest(lambda data: b"")),
    after_two_epochs(
        "the newest backup claims epoch 10^15, and its digest is right", write_nonsense
    ),
    Case("the directory is removed while training", (Start(fault="removes"),)),
    Case(
        "worker 0 is killed in the middle of writing a backup",
        (Start(fault="killed", killed=True), Start()),
    ),
    Case(
        "the backup is another model's; then it is removed",
        (Start(fault="interrupted", width=300, killed=True), Start(), Start(remove)),
    ),
    *(
        after_two_epochs(
            f"each worker has a directory of its own, worker {1 - rank}'s is empty",
            move_to(rank),
            backup_dir="backup-{rank}",
            strategies=("adasum",),
        )
        for rank in range(2)
    ),
    after_two_epochs("no fault: killed after two epochs", lambda disk: None),
]


def run(case, folder, *, strategy="adasum"):
    """Run a case; return for each start a dict from ranks to `Outcome`.

    Args:
        case: the `Case`.
        folder: an empty one.
        strategy: "adasum" or "keras".
    """
    folder = pathlib.Path(folder)
    (folder / "disk").mkdir()
    with Disk(folder / "disk", case.options) as disk:
        if case.interrupted:
            with _interrupting:
                made = _interrupted(strategy)
            shutil.copytree(made, backups_of(disk))
        told = []
        for start in case.starts:
            start.before(disk)
            told.append(_started(start, disk, folder, case.backup_dir, strategy))
        return told


@functools.cache
def _interrupted(strategy):
    """Return a directory with the backups of a training that was killed after two epochs."""
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with Disk(folder) as disk:
        told = _started(Start(fault="interrupted"), disk, folder, "backup", strategy)
        assert newest(disk), told
        return backups_of(disk)


def _started(start, disk, folder, backup_dir, strategy):
    """Start all workers, and return dict from ranks to what becomes of them."""
    workers = WORKERS[strategy]
    asked = {"strategy": strategy, "fault": start.fault, "width": start.width}
    asked["backup_dir"] = str(disk.folder / backup_dir)
    ports, processes = free_ports(workers), []
    logs = [folder / f"{rank}.log" for rank in range(workers)]
    try:
        for rank, log in enumerate(logs):
            environment = worker_environment(ports, rank, 1)
            processes.append(
                start_worker_script("disk_worker.py", asked, log, environment, disk.popen)
            )
        deadline = time.monotonic() + LIMIT
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        codes = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return {rank: _outcome(*read_worker_report(logs[rank]), codes[rank]) for rank in range(workers)}


def _outcome(output, said, code):
    error, digest, seconds, first = map(said.get, ("type", "digest", "seconds", "first"))
    return Outcome(error, said.get("message", ""), digest, seconds, first, code, output)


def violations(case, told, expected):
    """Return what is not as it has to be, as texts.

    Args:
        case: the `Case`.
        told: of `run`.
        expected: digest of the weights of an unbroken run.
    """
    found = []
    for number, (start, outcomes) in enumerate(zip(case.starts, told, strict=True), 1):
        for rank, outcome in outcomes.items():
            who = f"worker {rank}, start {number},"
            is_killed = start.killed and (rank == 0 or start.fault == "interrupted")
            if outcome.code is None:
                found.append(f"{who} does not end")
            elif outcome.digest and outcome.digest != expected:
                found.append(f"{who} has other weights than unbroken")
            elif outcome.error and not re.search(r"worker \d|/disk/backup", outcome.message):
                found.append(f"{who} names neither a worker nor a file")
            elif not outcome.error and not outcome.digest and not is_killed:
                found.append(f"{who} reports nothing")
            elif outcome.error and number == len(told):
                found.append(f"{who} does not continue")
            if (outcome.seconds or 0.0) > WITHIN:
                found.append(f"{who} takes {outcome.seconds:.0f} s")
    return found
