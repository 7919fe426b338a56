"""Files that are there as a whole or not at all, whenever the process is killed.

A file is written under another name in the same directory, brought to the disk, and renamed, which
POSIX does in one step. Standard library only.
"""

import contextlib
import os
import re
import uuid

# What a file that is being written is called; its end stays, because Keras chooses a format by it.
UNFINISHED = ".unfinished-"


def is_local(path):
    """Whether a path, a str or a `pathlib.Path`, is one of this machine's file system."""
    return not re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*://", os.fspath(path))


@contextlib.contextmanager
def replacing(path):
    """Yields the path to write to; afterwards, the file is at `path`, in place of another one.

    Where writing fails, nothing is left and `path` is as it was. Where the process is killed, a
    file whose name begins with `UNFINISHED` may be left beside it.

    Args:
        path: a local path, str or `pathlib.Path`. Permissions are those of a new file.
    """
    # A link stays one: what it points to is replaced.
    folder, name = os.path.split(os.path.realpath(path))
    unfinished = os.path.join(folder, f"{UNFINISHED}{uuid.uuid4().hex[:8]}-{name}")
    try:
        yield unfinished
        _to_the_disk(unfinished)
        os.replace(unfinished, os.path.join(folder, name))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
        raise
    _to_the_disk(folder)  # the new name


def remove_unfinished(folder):
    """Removes what killed processes have left in a directory that nobody else writes to."""
    for name in os.listdir(folder):
        if name.startswith(UNFINISHED):
            with contextlib.suppress(OSError):  # not ours: a directory
                os.remove(os.path.join(folder, name))


def _to_the_disk(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
