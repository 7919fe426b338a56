"""A directory, or a small separate file system, for backups in tests.

The file system is a tmpfs in a mount namespace: no other process sees it, and it is removed with
the process that holds it, which ends together with this one. It needs root.
"""

import contextlib
import pathlib
import subprocess

from support.network import end, missing, start

SECONDS_FOR_A_COMMAND = 20

# $1: options, $2: where.
MOUNT = 'mount -t tmpfs -o "$1" none "$2" && echo && exec cat'


def reason_to_skip():
    """Return why no file system can be mounted here; None if it can."""
    if reason := missing("nsenter", "unshare", "mount"):
        return reason
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        timeout=SECONDS_FOR_A_COMMAND,
    )
    return f"no mount namespace: {tried.stderr.strip()}" if tried.returncode else None


class Disk(contextlib.AbstractContextManager):
    """A place for backups.

    Args:
        folder: an empty directory.
        options: of mount(8), such as "size=3m". Defaults to "": it is just the directory.

    Attributes:
        folder: as the processes see it that `popen` starts.
        seen: the same directory, as this process sees it.
    """

    def __init__(self, folder, options=""):
        self.folder = self.seen = pathlib.Path(folder)
        self._holder = None
        if options:
            mount = ["unshare", "--mount", "sh", "-c", MOUNT, "sh", options, str(folder)]
            self._holder = start(mount)
            self.seen = pathlib.Path(f"/proc/{self._holder.pid}/root{self.folder}")

    def __exit__(self, *exception):
        self.close()

    def popen(self, command, **options):
        """Start a process that sees it."""
        return subprocess.Popen([*self._enter(), *command], **options)

    def remount(self, options):
        """Mount it with other options."""
        command = [*self._enter(), "mount", "-o", f"remount,{options}", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_FOR_A_COMMAND)

    def close(self):
        """Forget it, with all that it holds, where it was mounted."""
        if self._holder:
            end(self._holder)

    def _enter(self):
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"] if self._holder else []
