"""The tasks that train together, and the rank of this process. Standard library only."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_adasum.cluster import addresses

# The jobs whose tasks train, in rank order.
TRAINING_JOBS = ("chief", "worker")
MOST_WORKERS = 65_536  # a larger number is a mistake, and would need all memory


def listed(parts: Sequence[str], most: int = 8) -> str:
    """Return the first parts of a list as text, and how many more there are.

    Args:
        parts: the texts.
        most: the largest number of texts. Defaults to 8.
    """
    more = len(parts) - most
    return ", ".join([*parts[:most], *([f"and {more} more"] if more > 0 else [])])


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers that train together, and the rank of this one.

    Attributes:
        addresses: "host:port" of each worker, in rank order: the chief, if there is one, then the
            workers. Empty until they have joined, if each of them knows only the coordinator.
        names: the name of each worker, such as "worker 2".
        rank: the index of this worker.
        coordinator: the address at which the workers join worker 0; "" if they know all addresses.
        source: the source of this data, for messages, such as "Slurm (SLURM_PROCID)".
        job: the name of the job to which this worker belongs; "" if the name is not known.
    """

    addresses: tuple[str, ...]
    names: tuple[str, ...]
    rank: int
    coordinator: str = dataclasses.field(default="", repr=False)
    source: str = dataclasses.field(default="", repr=False, compare=False)
    job: str = dataclasses.field(default="", repr=False, compare=False)

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return len(self.names)

    def address(self, rank: int) -> str:
        """Return the address of a worker; "" if it is not known."""
        if self.addresses:
            return self.addresses[rank]
        return "" if rank else self.coordinator

    def named(self, ranks: Iterable[int]) -> str:
        """Return the names of some workers, with their addresses if they are known."""
        of_all = ((self.names[rank], self.address(rank)) for rank in ranks)
        return ", ".join(f"{name} ({address})" if address else name for name, address in of_all)

    def host_and_port(self, rank: int) -> tuple[str, int]:
        """Return the host and the port of a worker."""
        return addresses.split(self.addresses[rank])

    @property
    def hosts(self) -> list[str]:
        """The host of each task: the part of its address before the port."""
        return [self.host_and_port(rank)[0] for rank in range(len(self.addresses))]

    @property
    def spans_hosts(self) -> bool:
        """Whether the tasks are on more than one host."""
        return len(set(self.hosts)) > 1

    def workers_per_host(self) -> int | None:
        """Return how many tasks each host has.

        Returns:
            The number; None if hosts have different numbers of tasks, or if the tasks of a host do
            not have consecutive ranks.
        """
        hosts = self.hosts
        runs = [len(list(run)) for _, run in itertools.groupby(hosts)]
        is_even = len(runs) == len(set(hosts)) and len(set(runs)) == 1
        return runs[0] if is_even else None


def cluster_to_join(
    coordinator: str, rank: int, num_workers: int, source: str, job: str = ""
) -> Cluster:
    """Return the `Cluster` of workers that know only the address of worker 0."""
    names = tuple(f"worker {each}" for each in range(num_workers))
    return Cluster((), names, rank, coordinator, source, job)


def cluster_from_jobs(
    jobs: Mapping[str, Any], task_type: str | None, task_id: int | None, source: str
) -> Cluster:
    """Return the `Cluster`, with the rank of this task.

    Args:
        jobs: dict from names of jobs to the addresses of their tasks. Only the jobs that train are
            used.
        task_type: the job of this task.
        task_id: the index of this task in the job.
        source: the source of this data, for messages.

    Raises:
        ValueError: if this task does not train or is not in the cluster, or an address is wrong or
            appears twice.
    """
    if task_type is None or task_id is None:
        raise ValueError(
            f"{source} gives a cluster but not this task's type and index. "
            f"Received: task_type={task_type!r}, task_id={task_id!r}"
        )
    if task_type not in TRAINING_JOBS:
        raise ValueError(
            "Only 'chief' and 'worker' tasks train with AdasumMirroredStrategy. "
            f"Received: task type {task_type!r} from {source}"
        )
    of_jobs = {job: jobs.get(job) or [] for job in TRAINING_JOBS}
    sparse = [job for job, of_job in of_jobs.items() if not isinstance(of_job, list)]
    if sparse:
        raise ValueError(
            f"{source} must list every task of the job {sparse[0]!r}, because all of them train. "
            f"Received: {of_jobs[sparse[0]]}"
        )
    names = tuple(f"{job} {index}" for job in of_jobs for index in range(len(of_jobs[job])))
    of_all, own = tuple(itertools.chain(*of_jobs.values())), f"{task_type} {int(task_id)}"
    if own not in names:
        raise ValueError(
            f"{source} does not contain this task: the cluster has "
            f"{', '.join(names) or 'no task that trains'}. Received: {task_type} {task_id}"
        )
    if len(set(of_all)) < len(of_all):
        raise ValueError(f"{source} gives one address to two tasks. Received: {of_all}")
    for address in of_all:
        try:
            addresses.split(address)
        except ValueError as error:
            raise ValueError(f"{source} must give each task's address: {error}") from error
    return Cluster(of_all, names, names.index(own), source=source)
