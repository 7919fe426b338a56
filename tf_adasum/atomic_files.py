"""Write files that are complete or do not exist, even if the process is killed while writing.

A file is written under a temporary name in the same directory, flushed to the disk, and then
renamed. On POSIX systems, the renaming is one atomic step. Uses only the standard library.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterator

# The prefix of the names of unfinished files. Each name keeps the end of the file's name, because
# Keras chooses the file format by its suffix.
UNFINISHED = ".unfinished-"


def is_local(path: str | os.PathLike) -> bool:
    """Return whether a path is in this machine's file system, and not a URL such as "gs://…".

    Example:
        >>> is_local("/tmp/model.keras"), is_local("gs://bucket/model.keras")
        (True, False)
    """
    return not re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*://", os.fspath(path))


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yield a temporary path to write to, and rename its file to `path` at the end of the block.

    If writing fails, the unfinished file is removed, and `path` does not change. If the process is
    killed, a file whose name begins with ".unfinished-" may be left in the same directory.

    Args:
        path: a local path. If the file exists, it is replaced, and gets the permissions of a new
            file.
    """
    # A symbolic link stays a link: the file that it points to is replaced.
    folder, name = os.path.split(os.path.realpath(path))
    # Only the end of `name`, because names of 255 bytes are the longest.
    unfinished = os.path.join(folder, f"{UNFINISHED}{uuid.uuid4().hex}-{name[-40:]}")
    try:
        yield unfinished
        _flush(unfinished)
        os.replace(unfinished, os.path.join(folder, name))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot flush a directory
        _flush(folder)  # so that the new name is on the disk


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Remove unfinished files of killed processes from a directory that nobody else writes to."""
    for name in os.listdir(folder):
        if name.startswith(UNFINISHED):
            with contextlib.suppress(OSError):  # a directory, which is not ours
                os.remove(os.path.join(folder, name))


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
