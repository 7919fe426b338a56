"""Free ports for local workers, held until the workers have ended. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Iterator

from tf_adasum.cluster import ports

_SETTINGS = "/proc/sys/net/ipv4"
# Below are those of well-known programs, many of which start later than the workers.
_LOWEST = 10_000
_HIGHEST = 65_535
# Where the system does not say: from where Linux begins to what IANA gives.
_USUAL_RANGE = (32_768, _HIGHEST)


def candidates(settings: str = _SETTINGS) -> Iterator[int]:
    """Yield ports that the system gives to nobody who asks for any, without end.

    Those lie outside of ``ip_local_port_range``: first above it, where no program is registered,
    then below it, each time from a random one on. Those of ``ip_local_reserved_ports`` are left to
    whom they are reserved for. When there are no more, 0: the system chooses one.

    Args:
        settings: the folder with these two files. Defaults to that of Linux.
    """
    first, last = _range_of_others(settings)
    reserved = _reserved(settings)
    for block in (range(last + 1, _HIGHEST + 1), range(_LOWEST, first)):
        free = [port for port in block if port not in reserved]
        begin = secrets.randbelow(len(free)) if free else 0
        yield from free[begin:] + free[:begin]
    while True:
        yield 0


@contextlib.contextmanager
def held(count: int, ports_to_try: Iterator[int] | None = None) -> Iterator[list[int]]:
    """Yield distinct free ports, which are held until the block ends.

    Nobody else gets one meanwhile but a server that sets SO_REUSEADDR, see `cluster.ports.hold`,
    and no other launcher. Where the system can hold none they are free in the block.

    Args:
        count: how many.
        ports_to_try: goes on where the last block ended, so that its ports are others. Defaults to
            `candidates()`.

    Raises:
        OSError: if there are no free ports.
    """
    ports_to_try = ports_to_try or candidates()
    with contextlib.ExitStack() as sockets:
        found = []
        while len(found) < count:
            port = next(ports_to_try)
            try:
                holder = sockets.enter_context(ports.hold(port))
            except OSError as error:
                if port == 0 or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            found.append(holder.getsockname()[1])
        if not ports.can_be_held():
            sockets.close()
        yield found


def _range_of_others(settings):
    """Return the first and the last port of those that the system gives away."""
    try:
        with open(f"{settings}/ip_local_port_range") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return first, last


def _reserved(settings):
    """Return the ports that are kept for certain programs: "8080,9148-9150"."""
    reserved: set[int] = set()
    with contextlib.suppress(OSError, ValueError), open(f"{settings}/ip_local_reserved_ports") as f:
        for part in f.read().strip().split(","):
            first, _, last = part.partition("-")
            reserved.update(range(int(first), int(last or first) + 1))
    return reserved
