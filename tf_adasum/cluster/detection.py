"""Detects the launcher (Slurm, MPI, Kubernetes, …) from environment variables.

Read the code in this order: `find` (the order of the sources), `_EnvSource` (the data of a source),
then a function for each source. Standard library only. Nothing is sent over a network, and no
process is started.
"""

from __future__ import annotations

import dataclasses
import re
import typing
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from tf_adasum.cluster import addresses, tf_config
from tf_adasum.cluster.tasks import MOST_WORKERS, Cluster, cluster_to_join
from tf_adasum.environment_variables import COORDINATOR, RANK, WORLD_SIZE
from tf_adasum.errors import see

# Above Linux's ephemeral ports, as in JAX's cluster detection.
_FIRST_PORT, _PORTS = 61_440, 4_096
_LOCAL = "127.0.0.1"
_INDEX = "JOB_COMPLETION_INDEX"

# Slurm's lists of nodes, such as ``n[2,10]``.
_RANGES = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_NODE = rf"(?:[^][,\s]|{_RANGES})+"
_LIST = re.compile(rf"({_NODE})(?:,{_NODE})*", re.ASCII)


def find(environment: Mapping[str, str]) -> Cluster | None:
    """Return the processes that were started together with this one, or how to join them.

    The first source that is set is used: ``TF_CONFIG``; ``TF_ADASUM_COORDINATOR``, ``_RANK`` and
    ``_WORLD_SIZE``; ``KERAS_DISTRIBUTION_*``; torchrun's ``MASTER_ADDR``, ``MASTER_PORT``, ``RANK``
    and ``WORLD_SIZE``; Open MPI; PMI; a step of Slurm; an Indexed Job of Kubernetes. ``TF_CONFIG``
    has the addresses of all workers. Another source gives worker 0's address, the rank and the
    number of workers. If one of these three values is missing in the variables of this package, of
    Keras or of torchrun, it is taken from the variables of the launcher that started the processes.

    Args:
        environment: the environment variables of this process, such as `os.environ`.

    Returns:
        The `Cluster`, with the addresses of all workers only from ``TF_CONFIG``; None if this
        process trains alone.

    Raises:
        ValueError: if a value is not valid, such as a rank that is too large; if sources contradict
            each other; if processes were started together, but one of the three values is missing.
            The message names the variables and their values.

    Example:
        >>> found = find({"MASTER_ADDR": "a", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"})
        >>> found.coordinator, found.rank, found.num_workers, found.source
        ('a:1', 1, 2, 'torchrun (MASTER_ADDR)')
    """
    if text := environment.get(tf_config.NAME):
        return tf_config.parse(text)
    own = _own(environment)
    if own and own.size.value == 1:  # whichever launcher has started this process
        return own.config()
    started = next(filter(None, (each(environment) for each in _LAUNCHERS)), None)
    configured = own or _keras(environment) or _torchrun(environment, started)
    if configured:
        return configured.completed_by(started).config()
    if started is None or (started.rank == _EnvField(_INDEX, 0) and started.size.value is None):
        return None  # the first pod of an Indexed Job may be the only one
    return started.config()


class _EnvField(typing.NamedTuple):
    """The coordinator, the rank or the number of workers; the value is None if it is missing.

    Attributes:
        name: the name of its variable.
        value: the value.
    """

    name: str
    value: Any


@dataclasses.dataclass(frozen=True)
class _EnvSource:
    """The address of worker 0, the rank and the number of workers, as one source gives them.

    Attributes:
        source: the name of the source, for messages.
        coordinator: the address of worker 0, "host:port".
        rank: the rank of this worker.
        size: the number of workers.
        variables: dict from the names of variables to their values, for messages.
        job: the name of the job that gives the ranks; "" if the name is not known.
    """

    source: str
    coordinator: _EnvField
    rank: _EnvField
    size: _EnvField
    variables: Mapping[str, str]
    job: str = ""

    @property
    def shown(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.variables.items())

    @property
    def parts(self) -> tuple[_EnvField, _EnvField, _EnvField]:
        return self.coordinator, self.rank, self.size

    def completed_by(self, started: _EnvSource | None) -> _EnvSource:
        """Return this data; if values are missing, take them from the launcher's data.

        If the data is complete and has more than one worker, it is returned unchanged, because
        torchrun may start several workers in each process of ``srun``.
        """
        is_complete = all(part.value is not None for part in self.parts)
        if started is None or (is_complete and self.size.value != 1):
            return self
        for own, other in ((self.rank, started.rank), (self.size, started.size)):
            if None not in (own.value, other.value) and own.value != other.value:
                raise ValueError(
                    f"{own.name} and {other.name} contradict each other. Unset the variable that "
                    f"is wrong, or set {WORLD_SIZE}=1 if each process should train alone. "
                    f"Received: {self.shown}, {started.shown} {see('TFA-203')}"
                )
        coordinator, rank, size = (
            other if own.value is None and other.value is not None else own
            for own, other in zip(self.parts, started.parts, strict=True)
        )
        variables = {**self.variables, **started.variables}
        job = started.job if rank is started.rank else self.job
        source = f"{self.source} with {started.source}"
        return _EnvSource(source, coordinator, rank, size, variables, job)

    def config(self) -> Cluster | None:
        """Return the `Cluster`; None for one worker.

        Raises:
            ValueError: if a value is missing; if the rank or the number of workers is out of range.
        """
        coordinator, rank, size = (part.value for part in self.parts)
        if size is not None and not 1 <= size <= MOST_WORKERS:
            limit = "at least 1" if size < 1 else f"at most {MOST_WORKERS}"
            raise ValueError(f"{self.size.name} must be {limit}. Received: {self.shown}")
        if None not in (rank, size) and rank >= size:
            raise ValueError(
                f"{self.rank.name} must be less than {self.size.name}, because ranks count from 0. "
                f"Received: {self.shown}"
            )
        if size == 1:
            return None
        missing = [part.name for part in self.parts if part.value is None]
        if missing:
            raise ValueError(
                f"{self.source} shows that this process was started together with others. To join "
                f"them, set {' and '.join(missing)}. If each process should train alone, set "
                f"{WORLD_SIZE}=1. Received: {self.shown} {see('TFA-202')}"
            )
        return cluster_to_join(coordinator, rank, size, self.source, self.job)


def _own(environment: Mapping[str, str]) -> _EnvSource | None:
    """Return the data in this package's own variables; None if they are not set."""
    names = (COORDINATOR, RANK, WORLD_SIZE)
    if not any(environment.get(name) for name in names):
        return None
    coordinator = environment.get(COORDINATOR) or None
    if coordinator:
        _check_address(coordinator, environment, COORDINATOR)
    return _source(f"the environment ({COORDINATOR})", environment, names, coordinator, names[:1])


def _keras(environment: Mapping[str, str]) -> _EnvSource | None:
    """Return the data in the variables of `keras.distribution.initialize`; None if not set."""
    prefix = "KERAS_DISTRIBUTION_"
    names = (f"{prefix}JOB_ADDRESSES", f"{prefix}PROCESS_ID", f"{prefix}NUM_PROCESSES")
    if not any(environment.get(name) for name in names):
        return None
    listed = [each.strip() for each in environment.get(names[0], "").split(",")]
    for address in filter(None, listed):
        _check_address(address, environment, names[0])
    source = _source(f"Keras ({names[0]})", environment, names, listed[0] or None, names[:1])
    if len(listed) == 1:
        return source
    if source.size.value not in (None, len(listed)):
        raise ValueError(
            f"{names[0]} must be the address of process 0, or as many addresses as {names[2]}. "
            f"Received: {source.shown}"
        )
    return dataclasses.replace(source, size=_EnvField(names[0], len(listed)))


def _torchrun(environment: Mapping[str, str], started: _EnvSource | None) -> _EnvSource | None:
    """Return the data in torchrun's variables; None if they are not set.

    These names are generic, and scripts for PyTorch also set them. So the variables are used only
    in three cases. First, if ``RANK`` and ``WORLD_SIZE`` are set. Second, if ``MASTER_ADDR`` and
    one of these two variables are set. Third, if a launcher has started this process, and
    ``MASTER_ADDR`` and ``MASTER_PORT`` are set.
    """
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    ranks = [bool(environment.get(name)) for name in ("RANK", "WORLD_SIZE")]
    if not (all(ranks) or (host and any(ranks)) or (host and port and started)):
        return None
    coordinator = None
    if host and port:
        coordinator = addresses.joined(host, 0)[:-1] + port
        _check_address(coordinator, environment, "MASTER_ADDR", "MASTER_PORT")
        if environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true":
            # torchrun itself listens on MASTER_PORT.
            sources = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
            coordinator = addresses.joined(
                host, _port_of(" ".join(environment.get(each, "") for each in sources))
            )
    job = environment.get("TORCHELASTIC_RUN_ID", "")
    job = "" if job == "none" else job  # torchrun's default name
    missing = "MASTER_PORT" if host else "MASTER_ADDR"
    names = (missing, "RANK", "WORLD_SIZE")
    shown = ("MASTER_ADDR", "MASTER_PORT")
    return _source("torchrun (MASTER_ADDR)", environment, names, coordinator, shown, job)


def _open_mpi(environment: Mapping[str, str]) -> _EnvSource | None:
    """Return the data in Open MPI's variables, which lack the host of rank 0; None if not set."""
    names = (COORDINATOR, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if not environment.get(names[1]):
        return None
    is_one_host = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment.get(names[2])
    host = _LOCAL if is_one_host else _host_of_mpirun(environment)
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "")
    coordinator = host and addresses.joined(host, _port_of(job))
    return _source(f"Open MPI ({names[1]})", environment, names, coordinator, job=job)


def _host_of_mpirun(environment: Mapping[str, str]) -> str | None:
    """Return the usual host of rank 0: the first node of a Slurm job, or the host of ``mpirun``."""
    of_job = environment.get("SLURM_JOB_NODELIST")
    if of_job:
        return first_node(of_job, "SLURM_JOB_NODELIST")
    # The name of a job in Open MPI 5. The other variables only have addresses of local daemons.
    named = re.fullmatch(r"prterun-(.+)-\d+@\d+", environment.get("PMIX_NAMESPACE", ""))
    # Open MPI 4: "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911".
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    listed = re.search(r"tcp://([^,:;]+)|tcp6://\[?([^],]+)", uri)
    return (named and named[1]) or (listed and (listed[1] or listed[2])) or None


def _pmi(environment: Mapping[str, str]) -> _EnvSource | None:
    """Return the data in PMI's variables (MPICH, Intel MPI and others); None if not set."""
    names = (COORDINATOR, "PMI_RANK", "PMI_SIZE")
    if not environment.get(names[1]):
        return None
    of_host = [environment.get(name) for name in ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")]
    host = _LOCAL if environment.get(names[2]) in of_host else None
    if not host and environment.get("SLURM_JOB_NODELIST"):
        host = first_node(environment["SLURM_JOB_NODELIST"], "SLURM_JOB_NODELIST")
    ids = (environment.get(name) for name in ("I_MPI_HYDRA_UUID", "PMI_JOBID", "SLURM_JOB_ID"))
    job = next(filter(None, ids), "")  # jobs of MPICH have no name
    coordinator = host and addresses.joined(host, _port_of(job))
    source = _source(f"PMI ({names[1]})", environment, names, coordinator, job=job)
    slurm = _slurm(environment)  # srun --mpi=pmi2 sets the variables of PMI and of Slurm
    is_same = slurm and (slurm.rank.value, slurm.size.value) == (
        source.rank.value,
        source.size.value,
    )
    return slurm if is_same else source


def _slurm(environment: Mapping[str, str]) -> _EnvSource | None:
    """Return the data in the variables of a task of ``srun``; None if this is not such a task.

    A batch script and the shell of ``salloc`` are not tasks of ``srun``.
    """
    names = (COORDINATOR, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    rank = environment.get(names[1])
    if not rank or (rank == "0" and not environment.get(names[2])):
        return None
    listed, job = environment.get("SLURM_STEP_NODELIST"), environment.get("SLURM_JOB_ID")
    coordinator = None
    if listed and job:
        host = first_node(listed, "SLURM_STEP_NODELIST")
        if environment.get("SLURM_STEP_NUM_NODES") == "1":
            host = _LOCAL
        # Consecutive jobs on a node, and their steps, get different ports.
        step = _number(environment, "SLURM_STEP_ID") or 0
        number = (_number(environment, "SLURM_JOB_ID") or 0) + 1009 * step
        coordinator = addresses.joined(host, _FIRST_PORT + number % _PORTS)
    shown = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST")
    name = job and f"{job}.{environment.get('SLURM_STEP_ID', '')}"
    return _source(f"Slurm ({names[1]})", environment, names, coordinator, shown, name or "")


def _kubernetes(environment: Mapping[str, str]) -> _EnvSource | None:
    """Return the data of a pod of an Indexed Job; None if its index is not set.

    Kubernetes sets only the index of the pod.
    """
    names = (COORDINATOR, _INDEX, WORLD_SIZE)
    if not environment.get(names[1]):
        return None
    return _source(f"a Kubernetes Indexed Job ({names[1]})", environment, names)


_LAUNCHERS = (_open_mpi, _pmi, _slurm, _kubernetes)


def _source(
    source: str,
    environment: Mapping[str, str],
    names: Sequence[str],
    coordinator: str | None = None,
    also_shown: Sequence[str] = (),
    job: str = "",
) -> _EnvSource:
    """Return a `_EnvSource` whose rank and number of workers come from two variables.

    Args:
        source: the name of the source.
        environment: the environment variables of this process.
        names: names of the variables for the coordinator, the rank and the number of workers.
        coordinator: the coordinator's address "host:port"; None if it is missing.
        also_shown: names of other variables that messages show.
        job: the name of the job.
    """
    rank, size = (_EnvField(name, _number(environment, name)) for name in names[1:])
    shown = [name for name in (*also_shown, *names[1:]) if environment.get(name)]
    variables = {name: environment[name] for name in shown}
    return _EnvSource(source, _EnvField(names[0], coordinator), rank, size, variables, job)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number in a variable; None if the variable is not set, or empty."""
    value = environment.get(name)
    if not value:
        return None
    if not re.fullmatch(r"\d{1,10}", value, re.ASCII):
        raise ValueError(f"{name} must be 0 or a larger whole number. Received: {name}={value!r}")
    return int(value)


def first_node(text: str, name: str) -> str:
    """Return the first node of a list, in Slurm's order.

    Args:
        text: the list.
        name: the name of its variable.

    Raises:
        ValueError: if the text is not a list of nodes.

    Example:
        >>> first_node("gpu[009-010,7]-ib,login1", "SLURM_JOB_NODELIST")
        'gpu009-ib'
    """
    found = _LIST.fullmatch(text)
    if not found:
        raise ValueError(
            f"{name}: a list of nodes must look like 'n[1-3,7],login1'. Received: {text[:1000]!r}"
        )
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", found[1])


def _check_address(address: str, environment: Mapping[str, str], *names: str) -> None:
    try:
        addresses.split(address)
    except ValueError as error:
        received = ", ".join(f"{name}={environment.get(name)!r}" for name in names)
        raise ValueError(f"{received}: {error}") from error


def _port_of(job: str) -> int:
    """Return a port that all processes of a job compute; most other jobs get a different port."""
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS
