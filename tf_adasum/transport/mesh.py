"""The mesh of a process: the connections to all workers, which all its strategies share."""

from __future__ import annotations

import dataclasses

from tf_adasum.transport import library


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The connections of this process to all workers.

    Attributes:
        number: the number of the mesh in this process.
        channel: the number of the strategy that uses the mesh; the same on all workers.
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
