"""The mesh of a process: its connections to all workers, shared by all of its strategies."""

from __future__ import annotations

import dataclasses

from tf_adasum.transport import library


@dataclasses.dataclass(frozen=True)
class Mesh:
    """This process's end of the connections to all workers.

    Attributes:
        number: the number of the mesh in this process.
        channel: the number of the strategy that uses it, the same on all workers.
    """

    number: int
    channel: int = 0


def abort(message: str) -> None:
    """End all exchanges of this process over UCX, now and later, with an error.

    Args:
        message: the reason.
    """
    if library.is_open():
        library.opened().abort(message)
