"""The data with which a worker can join the other workers. Standard library only."""

from __future__ import annotations

import dataclasses

MOST_WORKERS = 65_536  # a larger number is a mistake, and would need all memory


@dataclasses.dataclass(frozen=True)
class RendezvousConfig:
    """The address of worker 0, the rank of this worker, and the number of workers.

    Attributes:
        coordinator: the address "host:port" at which worker 0 waits for the other workers.
        rank: the rank of this worker, from 0.
        num_workers: the number of workers, at least 1.
        source: the source of this data, for messages, such as "Slurm (SLURM_PROCID)".
        job: the name of the job to which this worker belongs; "" if the name is not known.
    """

    coordinator: str
    rank: int
    num_workers: int
    source: str
    job: str = ""
