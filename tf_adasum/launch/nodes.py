"""The machines of a job, with one launcher on each machine. Uses only the standard library."""

import dataclasses
from collections.abc import Sequence

from tf_adasum.cluster import addresses


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The number of machines, the rank of this machine, and the address of worker 0.

    Attributes:
        count: the number of machines. Defaults to 1.
        rank: the rank of this machine, counted from 0. Defaults to 0.
        coordinator: "host:port" at which worker 0, on node 0, waits for the other workers; None if
            there is only one machine.
        workers: the number of workers of each machine, if these numbers differ. Defaults to (): all
            machines have as many workers as this machine.

    Raises:
        ValueError: if a value is wrong. The message names the option and the value.

    Example:
        >>> Nodes(2, 1, "node0:2222").ranks(4)
        range(4, 8)
        >>> Nodes(2, 2, "node0:2222")
        Traceback (most recent call last):
        ValueError: --node-rank: expected 0 to 1 with --nnodes 2. Received: --node-rank 2
    """

    count: int = 1
    rank: int = 0
    coordinator: str | None = None
    workers: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        if self.count < 1:
            raise ValueError(f"--nnodes: expected at least 1. Received: --nnodes {self.count}")
        if self.rank is None or not 0 <= self.rank < self.count:
            raise ValueError(
                f"--node-rank: expected 0 to {self.count - 1} with --nnodes {self.count}. "
                f"Received: --node-rank {self.rank}"
            )
        if self.count == 1 and self.coordinator is not None:
            raise ValueError(
                "--coordinator: the workers of a single machine need no coordinator. Leave the "
                "option out, or give the number of machines, such as --nnodes 2. "
                f"Received: --coordinator {self.coordinator}"
            )
        if self.count > 1 and self.coordinator is None:
            raise ValueError(
                "--coordinator: expected the address of node 0, the same on all nodes, such as "
                "--coordinator node0:2222. Received: --nnodes without it"
            )
        if self.coordinator is not None:
            try:
                addresses.split(self.coordinator)
            except ValueError as error:
                raise ValueError(f"--coordinator: {error}") from error

    def ranks(self, num_workers: int) -> range:
        """Return the ranks of this machine's workers.

        Args:
            num_workers: the number of workers of this machine.
        """
        first = sum(self._workers(num_workers)[: self.rank])
        return range(first, first + num_workers)

    def total(self, num_workers: int) -> int:
        """Return the number of workers of all machines.

        Args:
            num_workers: the number of workers of this machine.
        """
        return sum(self._workers(num_workers))

    def _workers(self, num_workers: int) -> Sequence[int]:
        return self.workers or [num_workers] * self.count
