"""Writes and reads backups: one file for each backup, with a digest of the file's content.

    tf_adasum backup 1 SHA-256 of the rest, in hexadecimal
    {"epoch": 3, …, "arrays": [{"section": …, "path": …, "dtype": …, "shape": …, "copies": …}, …]}
    the arrays' bytes, one after the other

A file contains only numbers and JSON, and nothing that can be executed. `BackupFiles` keeps only
the last good files, as many as its argument `keep`.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import shutil
import warnings

import numpy as np
import tensorflow as tf

from tf_adasum import atomic_files
from tf_adasum.errors import DamagedBackupError, see

MAGIC = b"tf_adasum backup 1 "
SUFFIX = ".backup"

# The facts that say where training resumes, and the largest number that makes sense.
COUNTS, LARGEST_COUNT = ("epoch", "batch", "position", "pass"), 10**12


@dataclasses.dataclass
class Array:
    """The value of a variable, or one value for each replica if the values differ.

    Attributes:
        section: "model", "optimizer", "rule" or "metrics".
        path: the path of the variable.
        copies: list of NumPy arrays of one shape and dtype: one array, or one for each replica.
    """

    section: str
    path: str
    copies: list


@dataclasses.dataclass
class Backup:
    """The content of a backup file.

    Attributes:
        facts: dict of JSON types. "epoch" and "batch" are the progress of the training; "position",
            "pass" and "seed" belong to the `DataOrder`; "since" is how many batches were done after
            the last regular backup (a backup that was due by `save_freq`); "validating" is 1 if the
            steps of the epoch are done, but its validation is not. "rows" and "batches" are the
            number of rows in a global batch and of batches in the data; 0 if not known. "passes" is
            how many passes through the data have ended, "first" the first epoch of the training.
        arrays: list of `Array`.
    """

    facts: dict
    arrays: list

    @property
    def progress(self):
        """The epoch and the batch that come next, counted from 0."""
        return self.facts["epoch"], self.facts["batch"]

    def with_batch_size(self, rows, batches):
        """Return this backup with its position counted in batches of the size that is used now.

        The position is rounded down, so a part of a batch may be trained again. If neither of the
        two numbers is known now and in the backup, the position is not changed.

        Args:
            rows: the rows of a global batch; 0 if not known.
            batches: the number of batches of the data; 0 if not known.
        """
        factor = self.facts.get("rows", 0), rows
        if not all(factor):
            factor = batches, self.facts.get("batches", 0)
        if not all(factor):
            return self
        facts = dict(self.facts)
        for name in ("batch", "position"):
            there = facts[name] * factor[0] // factor[1]
            facts[name] = min(there, batches or there)  # the last batch may have fewer rows
        return dataclasses.replace(self, facts=facts)

    def encoded(self):
        """Return the content of the file as a list of bytes-like objects."""
        table = [
            {
                "section": array.section,
                "path": array.path,
                "dtype": tf.as_dtype(array.copies[0].dtype).name,
                "shape": array.copies[0].shape,
                "copies": len(array.copies),
            }
            for array in self.arrays
        ]
        body = [json.dumps({**self.facts, "arrays": table}).encode() + b"\n"]
        body += [memoryview(bytes_of(copy)) for array in self.arrays for copy in array.copies]
        return [MAGIC, _digest(body).encode() + b"\n", *body]

    @classmethod
    def decoded(cls, data, name):
        """Return the `Backup` that the bytes of a file contain.

        Args:
            data: bytes-like object.
            name: the name of the file, for messages.

        Raises:
            tf_adasum.errors.DamagedBackupError: if any byte has changed, or the file has another
                format.
        """
        data = memoryview(data)
        begin = len(MAGIC) + 2 * hashlib.sha256().digest_size + 1
        if bytes(data[:begin]) != MAGIC + _digest([data[begin:]]).encode() + b"\n":
            raise DamagedBackupError(f"{name} is cut off or damaged ({len(data)} bytes)")
        try:
            end = begin + re.search(b"\n", data[begin:]).start()  # without a copy of the file
            facts = json.loads(bytes(data[begin:end]))
            if not all(0 <= facts[name] <= LARGEST_COUNT for name in COUNTS):
                raise ValueError(f"it is at {[facts[name] for name in COUNTS]}")
            return cls(facts, _arrays(facts.pop("arrays"), data, end + 1))
        except Exception as error:  # whatever follows from another format
            what = f"{type(error).__name__}: {error}"
            raise DamagedBackupError(f"{name} makes no sense ({what:.200})") from error


def _arrays(rows, data, position):
    """Return an `Array` for each row of a file's table; check that no bytes are left over."""
    arrays = []
    for row in rows:
        dtype, shape, copies = tf.as_dtype(row["dtype"]).as_numpy_dtype, row["shape"], []
        for _ in range(row["copies"]):
            copies.append(np.frombuffer(data, dtype, math.prod(shape), position).reshape(shape))
            position += copies[-1].nbytes
        arrays.append(Array(row["section"], row["path"], copies))
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes belong to no array")
    return arrays


def bytes_of(array):
    """Return the bytes of an array of any dtype as uint8, without a copy if possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _digest(parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class BackupFiles:
    """The backups of one training, in a directory that holds nothing else.

    Args:
        folder: the directory; it is created when the first backup is written. None for a worker
            without one.
        keep: int, how many backups are kept. Defaults to 2.
    """

    def __init__(self, folder, keep=2):
        self.folder, self.keep = pathlib.Path(folder) if folder else None, keep
        self._good = []  # paths, the newest last
        self._only_next = False

    def prepare(self, size):
        """Check that backups can be written, before the first backup is written.

        Args:
            size: int, the minimal size of a backup in bytes.

        Raises:
            OSError: if nothing can be written to the directory, or no backup fits on the disk.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_files.remove_unfinished(self.folder)
            probe = self.folder / f"{atomic_files.UNFINISHED}probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OSError(
                "`backup_dir` must be a directory that worker 0 can write to: "
                f"{error.strerror}. Received: backup_dir={str(self.folder)!r} {see('TFA-601')}"
            ) from error
        disk = shutil.disk_usage(self.folder)
        room = disk.free + sum(path.stat().st_size for path in self._paths())
        if room < size and disk.total > 0:  # some file systems report 0
            raise OSError(
                f"The disk of {self.folder.absolute()} has {_mebibytes(room)} of free space, and a "
                f"backup needs at least {_mebibytes(size)}. Free some space, or use another "
                f"`backup_dir`. {see('TFA-601')}"
            )

    def write(self, backup):
        """Write a backup, then remove old backups; if the disk is full, remove old backups first.

        Raises:
            OSError: if the backup cannot be written. The last good backup stays.
        """
        parts = backup.encoded()
        size = sum(map(len, parts))
        path = self.folder / "epoch-{}-batch-{}{}".format(*backup.progress, SUFFIX)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_files.remove_unfinished(self.folder)
            if shutil.disk_usage(self.folder).free < size:
                self._remove_but(self._good[-1:])
            with atomic_files.replacing(path) as unfinished, open(unfinished, "wb") as file:
                file.writelines(parts)
        except OSError as error:
            is_gone = isinstance(error, FileNotFoundError)
            reason = (
                "another job with this `backup_dir` has removed it" if is_gone else error.strerror
            )
            raise OSError(
                error.errno,
                f"{reason}: the backup {path.name} ({_mebibytes(size)}) cannot be written to "
                f"{self.folder.absolute()} {see('TFA-601')}",
            ) from error
        earlier = [] if self._only_next else [each for each in self._good if each != path]
        self._good, self._only_next = [*earlier, path][-self.keep :], False
        self._remove_but(self._good)

    def keep_only_next(self):
        """Let the next `write` remove all older backups.

        Their names have batches of another size, so they do not show which backup is newer.
        """
        self._only_next = True

    def _remove_but(self, kept):
        for path in self._paths():
            if path not in kept:
                path.unlink(missing_ok=True)

    def newest(self, workers, check=lambda backup, name: None):
        """Read the newest good backup of any worker; all workers call this.

        One worker reads a file, and sends it to the others. If it is refused, the next newest
        follows.

        Args:
            workers: the `Workers`.
            check: function that takes a `Backup` and the path of its file, and raises a ValueError
                if the backup does not belong to this training. Defaults to no check.

        Returns:
            The `Backup`; None if no worker has a file.

        Raises:
            tf_adasum.errors.DamagedBackupError: if there are files, but all of them are damaged.
            ValueError: if no file passes the check, and at least one file is not damaged.

        Warns:
            UserWarning: on a worker that has refused files.
        """
        paths, refused, kind = self._paths(), [], 0
        while True:
            progress = _progress_in(paths[0]) if paths else (-1, -1)
            table = workers.gather([*progress, kind]).tolist()
            owner = max(range(len(table)), key=lambda rank: (table[rank][:2], -rank))
            if table[owner][0] < 0:
                break
            data = b""
            if owner == workers.rank:
                try:
                    data = paths[0].read_bytes()
                    backup = Backup.decoded(data, paths[0])
                    check(backup, paths[0])
                except (DamagedBackupError, OSError, ValueError) as error:
                    why = f"{paths[0]}: {error.strerror}" if isinstance(error, OSError) else error
                    refused.append(str(why).rstrip("."))
                    data, kind = b"", max(kind, 2 if isinstance(error, ValueError) else 1)
                    del paths[0]
            if data := workers.broadcast_bytes(owner, data):
                if owner != workers.rank:
                    backup = Backup.decoded(data, f"the backup of worker {owner}")
                if refused:
                    warnings.warn(
                        "Training resumes from epoch-{}-batch-{}, because newer backups cannot be "
                        "used: {}. {}".format(*backup.progress, "; ".join(refused), see("TFA-602")),
                        stacklevel=2,
                    )
                self._good = paths[:1]
                return backup
        teller = max(range(len(table)), key=lambda rank: (table[rank][2], -rank))
        if text := workers.broadcast_bytes(teller, "; ".join(refused).encode()).decode():
            raise (ValueError if table[teller][2] == 2 else DamagedBackupError)(
                f"No backup can be used: {text}. To start from the beginning, remove the backup or "
                f"use another `backup_dir`. {see('TFA-602')}"
            )
        return None

    def _paths(self):
        """Return the paths of all backups, the backup with the most progress first."""
        found = self.folder.glob(f"*{SUFFIX}") if self.folder else ()
        named = [path for path in found if _progress_in(path) and path.is_file()]
        return sorted(named, key=_progress_in, reverse=True)

    def remove(self):
        """Remove all backups, and then the directory if it is empty."""
        if not self.folder.is_dir():
            return
        self._remove_but([])
        atomic_files.remove_unfinished(self.folder)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def _progress_in(path):
    """Return the progress in the name of a backup, as a pair; None if it has another name."""
    name = re.fullmatch(r"epoch-(\d{1,18})-batch-(\d{1,18})", path.stem)
    return name and (int(name[1]), int(name[2]))


def _mebibytes(size):
    return f"{size / 2**20:.1f} MiB"
