"""The machines on which workers are started, one launcher on each. Standard library only."""

from __future__ import annotations

import dataclasses

from tf_adasum.cluster import addresses


@dataclasses.dataclass(frozen=True)
class Nodes:
    """How many machines there are, which one this is, and where worker 0 is met.

    Attributes:
        count: how many. Defaults to 1.
        rank: which one this is, from 0. Defaults to 0.
        coordinator: "host:port" at which worker 0, on node 0, waits for the others; None for one
            machine alone.

    Raises:
        ValueError: if they do not fit. The message names the option and the value.

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

    def __post_init__(self) -> None:
        """Check them."""
        if self.count < 1:
            raise ValueError(f"--nnodes: expected at least 1. Received: --nnodes {self.count}")
        if not 0 <= self.rank < self.count:
            one = "0 to " if self.count > 1 else ""
            raise ValueError(
                f"--node-rank: expected {one}{self.count - 1} with --nnodes {self.count}. "
                f"Received: --node-rank {self.rank}"
            )
        if self.count == 1 and self.coordinator is not None:
            raise ValueError(
                "--coordinator: workers of one machine need none. Leave it out, or say how many "
                f"machines there are: --nnodes 2. Received: --coordinator {self.coordinator}"
            )
        if self.count > 1 and self.coordinator is None:
            raise ValueError(
                "--coordinator: expected the address of node 0, the same on all nodes, such as "
                f"--coordinator node0:2222. Received: --nnodes {self.count} without it"
            )
        if self.coordinator is not None:
            try:
                addresses.split(self.coordinator)
            except ValueError as error:
                raise ValueError(f"--coordinator: {error}") from error

    def ranks(self, num_workers: int) -> range:
        """Return the ranks of this machine's workers.

        Args:
            num_workers: how many each machine has.
        """
        return range(self.rank * num_workers, (self.rank + 1) * num_workers)
