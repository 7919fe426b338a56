"""Backup files: one per backup, with a digest of all it holds, the last good ones kept.

    tf_adasum backup 1 SHA-256 of the rest, in hexadecimal
    {"epoch": 3, …, "arrays": [{"section": …, "path": …, "dtype": …, "shape": …, "copies": …}, …]}
    the arrays' bytes, one after the other

Numbers and JSON, nothing that is executed.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
import warnings

import numpy as np
import tensorflow as tf

from tf_adasum import atomic_files
from tf_adasum.errors import DamagedBackup

MAGIC = b"tf_adasum backup 1 "
SUFFIX = ".backup"


@dataclasses.dataclass
class Array:
    """A variable's value, or one for each replica where these differ.

    Attributes:
        section: "model", "optimizer", "rule" or "metrics".
        path: the variable's.
        copies: list of NumPy arrays of one shape and dtype: one, or as many as replicas.
    """

    section: str
    path: str
    copies: list


@dataclasses.dataclass
class Backup:
    """What a file holds.

    Attributes:
        facts: dict that JSON can hold, with "epoch" and "batch": how far the training was.
        arrays: list of `Array`.
    """

    facts: dict
    arrays: list

    @property
    def progress(self):
        """(epoch, batch): what comes next, counted from 0."""
        return self.facts["epoch"], self.facts["batch"]

    def encoded(self):
        """Return the bytes of a file as a list of bytes-like parts."""
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
        """Return the `Backup` in the bytes of a file.

        Args:
            data: bytes-like object.
            name: the file's, for messages.

        Raises:
            tf_adasum.errors.DamagedBackup: unless every byte is as it was written.
        """
        data = memoryview(data)
        begin = len(MAGIC) + 2 * hashlib.sha256().digest_size + 1
        if bytes(data[:begin]) != MAGIC + _digest([data[begin:]]).encode() + b"\n":
            raise DamagedBackup(f"{name} is cut off or damaged ({len(data)} bytes)")
        end = begin + bytes(data[begin:]).index(b"\n")
        facts = json.loads(bytes(data[begin:end]))
        position, arrays = end + 1, []
        for row in facts.pop("arrays"):
            dtype = tf.as_dtype(row["dtype"]).as_numpy_dtype
            count, copies = math.prod(row["shape"]), []
            for _ in range(row["copies"]):
                copy = np.frombuffer(data, dtype, count, position).reshape(row["shape"])
                position += copy.nbytes
                copies.append(copy)
            arrays.append(Array(row["section"], row["path"], copies))
        return cls(facts, arrays)


def bytes_of(array):
    """Return an array's bytes as an array of uint8, of any dtype, without a copy if possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _digest(parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class BackupFiles:
    """The backups of one training in a directory of their own.

    Args:
        folder: the directory; made when there is something to write.
        keep: int, how many backups are kept. Defaults to 2.
    """

    def __init__(self, folder, keep=2):
        self.folder, self.keep = pathlib.Path(folder), keep
        self._good = []  # paths, the newest last

    def write(self, backup):
        """Write a backup, then remove those that are not kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_files.remove_unfinished(self.folder)
        path = self.folder / "epoch-{}-batch-{}{}".format(*backup.progress, SUFFIX)
        with atomic_files.replacing(path) as unfinished, open(unfinished, "wb") as file:
            file.writelines(backup.encoded())
        self._good = [*(each for each in self._good if each != path), path][-self.keep :]
        for other in self._paths():
            if other not in self._good:
                other.unlink(missing_ok=True)

    def newest(self):
        """Read the newest good backup; warn of those that are refused.

        Returns:
            Its bytes and the `Backup`; None if there is no file.

        Raises:
            tf_adasum.errors.DamagedBackup: if there are files and none is good.
        """
        refused = []
        for path in self._paths():
            try:
                data = path.read_bytes()
                backup = Backup.decoded(data, path)
            except (DamagedBackup, OSError) as error:
                refused.append(str(error))
                continue
            if refused:
                warnings.warn(f"Training goes on from {path}: {'; '.join(refused)}.", stacklevel=2)
            self._good = [path]
            return data, backup
        if refused:
            raise DamagedBackup("; ".join(refused))
        return None

    def _paths(self):
        """Return the paths of all backups, the furthest in its training first."""
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            name = re.fullmatch(r"epoch-(\d+)-batch-(\d+)", path.stem)
            if name and path.is_file():
                found.append((int(name[1]), int(name[2]), path))
        return [path for *_, path in sorted(found, reverse=True)]

    def remove(self):
        """Remove all backups, and the directory if it is empty then."""
        if not self.folder.is_dir():
            return
        for path in self._paths():
            path.unlink(missing_ok=True)
        atomic_files.remove_unfinished(self.folder)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
