"""What a worker has been told so that it can join the others. Standard library only."""

from __future__ import annotations

import dataclasses

MOST_WORKERS = 65_536  # more are a slip of the pen, and would take all memory


@dataclasses.dataclass(frozen=True)
class Invitation:
    """Where worker 0 is met, and which of how many workers this process is.

    Attributes:
        coordinator: "host:port" at which worker 0 waits for the others.
        rank: this worker's, from 0.
        num_workers: how many workers train together, more than one.
        source: who has said so, for messages, such as "Slurm (SLURM_PROCID)".
        job: the name of the job to which this worker belongs; "" where that is not known.
    """

    coordinator: str
    rank: int
    num_workers: int
    source: str
    job: str = ""
