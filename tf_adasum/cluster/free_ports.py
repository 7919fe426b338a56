"""Finds free ports for local workers, and holds the ports until the workers have ended.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Iterator

from tf_adasum.cluster import ports

_SETTINGS = "/proc/sys/net/ipv4"
# Well-known programs use lower ports; many of these programs start later than the workers.
_LOWEST = 10_000
_HIGHEST = 65_535
# The range of ephemeral ports, if it cannot be read: from
# Linux's default for the first port to IANA's last port.
_USUAL_RANGE = (32_768, _HIGHEST)


def candidates(settings: str = _SETTINGS) -> Iterator[int]:
    """Yield, without end, ports that the system does not assign automatically.

    The ports above ``ip_local_port_range`` come first, because no program is registered for them.
    Then come the ports below this range. Each of these two sequences starts at a random port. Ports
    in ``ip_local_reserved_ports`` are left out. When no ports are left, the function yields 0, for
    which the system chooses a port.

    Args:
        settings: the folder with the files ``ip_local_port_range`` and ``ip_local_reserved_ports``.
            Defaults to Linux's folder.
    """
    first, last = _ephemeral_range(settings)
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

    In the block, only a server that sets SO_REUSEADDR can use a held port, see
    `cluster.ports.hold`. So another launcher cannot get the port. If the system cannot hold ports,
    the ports are not held in the block.

    Args:
        count: the number of ports.
        ports_to_try: iterator of ports. `with` blocks that share one iterator get different
            ports. Defaults to `candidates()`.

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


def _ephemeral_range(settings):
    """Return the first and the last ephemeral port."""
    try:
        with open(f"{settings}/ip_local_port_range") as file:
            first, last = map(int, file.read().split())
    except (OSError, ValueError):
        return _USUAL_RANGE
    return first, last


def _reserved(settings):
    """Return the ports reserved for certain programs; the file looks like "8080,9148-9150"."""
    reserved: set[int] = set()
    with contextlib.suppress(OSError, ValueError), open(f"{settings}/ip_local_reserved_ports") as f:
        for part in f.read().strip().split(","):
            first, _, last = part.partition("-")
            reserved.update(range(int(first), int(last or first) + 1))
    return reserved
