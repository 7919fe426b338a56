"""Tries the transports in an exchange at start-up, and chooses one transport for all workers.

UCX itself has several transports, such as shared memory and TCP; `UCX_TLS` selects among them.
Within a host, shared memory is the fastest if processes may copy from each other's memory. If
processes may not (other users, some containers), it may be slower than TCP, so it is not used. The
first candidate that works on all workers is used: it has to deliver the bytes that were sent.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import PATIENCE_SECONDS
from tf_adasum.errors import see
from tf_adasum.transport import argument, library, network_interface, shared_memory, ucx_port
from tf_adasum.transport.library import Mesh
from tf_adasum.transport.startup_exchange import Gather, StartupExchange
from tf_adasum.transport.ucx_port import SocketAddress

# Values of UCX_TLS: shared memory; copies between the memories of two processes of a host, with
# messages over TCP; only TCP.
SHARED_MEMORY, SINGLE_COPIES, TCP = shared_memory.TRANSPORTS, "cma,tcp,self", "tcp,self"
VARIABLE = "UCX_TLS"  # if the user has set this variable, its value is the only candidate

# Bytes that are sent to each worker. LARGE is large enough that UCX sends by reference, as it does
# for gradients of some MB. LARGE_IN_ALL limits the bytes to all workers together.
SMALL, LARGE, LARGE_IN_ALL = 2**10, 2**21, 2**24

_channels = itertools.count()
_choices: dict[tuple[Cluster, str], TransportChoice] = {}


@dataclasses.dataclass(frozen=True)
class TransportChoice:
    """The transport that a strategy uses for its gradients.

    Attributes:
        mesh: the `Mesh`; None for TensorFlow's collectives.
        summary: the text that worker 0 prints at the start, with the transport and the reason.
        endpoints: dict from ranks to the IP address and port of UCX to which this worker is
            connected.
    """

    mesh: Mesh | None
    summary: str
    endpoints: Mapping[int, SocketAddress] = dataclasses.field(default_factory=dict)


def select(
    cluster: Cluster,
    transport: str,
    devices: Sequence[str],
    gather: Gather,
) -> TransportChoice:
    """Return the transport of a new strategy; every worker has to call this.

    Args:
        cluster: the `Cluster`.
        transport: "ucx", or "auto" for UCX if it works.
        devices: names of this worker's devices.
        gather: function that takes this worker's int64 array ``[k]`` and returns the arrays of all
            workers, ``[workers, k]``, over TensorFlow's collectives.

    Raises:
        UcxUnavailableError: on all workers, if `transport` is "ucx" and one worker cannot use UCX.
    """
    all_workers, kept = StartupExchange(cluster, gather), _choices.get((cluster, transport))
    missing = argument.unsupported_reason(devices, len(cluster.addresses))
    missing = missing or _failure_of(library.opened)
    own = [kept is not None, VARIABLE in os.environ, next(_channels), *shared_memory.facts()]
    failure, numbers = all_workers.gather(missing, *own)
    are_kept, are_given, channels, *memory_facts = numbers.T
    if kept is None or not are_kept.all():  # if any worker has closed its mesh, all need a new one
        candidates, why_not = _candidates(
            cluster, bool(are_given.any()), *map(np.ndarray.tolist, memory_facts)
        )
        kept = _tried(transport, all_workers, failure, candidates, why_not)
        _choices[cluster, transport] = kept
    if kept.mesh is None:
        return kept
    return dataclasses.replace(kept, mesh=Mesh(kept.mesh.number, int(channels.max())))


def forget() -> None:
    """Let the next strategy make new connections, because the present connections were closed."""
    _choices.clear()


def _tried(
    transport: str,
    all_workers: StartupExchange,
    failure: str,
    candidates: Sequence[tuple[str, str]],
    why_not: str,
) -> TransportChoice:
    """Return the `TransportChoice`, without a trial if `failure` names what is missing."""
    reasons = [failure and f"UCX is not used: {failure}"]
    no_shared_memory = why_not and f"no shared memory: {why_not}"
    for transports, name in () if failure else candidates:
        mesh, device, endpoints, failure = _attempt(all_workers, transports)
        if mesh:
            why = "; ".join(filter(None, [*reasons, no_shared_memory]))
            summary = f"UCX {library.opened().version} ({name}; {device}){why and f': {why}'}"
            return TransportChoice(mesh, summary, endpoints)
        reasons.append(f"UCX over {name} fails: {failure}")
    why = "; ".join(filter(None, [*reasons, no_shared_memory]))
    if transport == argument.UCX:
        raise library.UcxUnavailableError(
            f"transport='ucx' cannot be used: {why}. Use transport='auto' on all workers, or make "
            f"UCX work on all of them. {see('TFA-213')}"
        )
    return TransportChoice(None, f"TensorFlow's collectives ({why})")


def _candidates(
    cluster: Cluster, is_given: bool, memories: list[int], networks: list[int], free: list[int]
) -> tuple[list[tuple[str, str]], str]:
    """Return the candidates, preferred ones first, and why shared memory is not used.

    Each candidate is a tuple: a value for ``UCX_TLS``, and a name.
    """
    if is_given:
        return [("", f"{VARIABLE}={os.environ.get(VARIABLE, '')}")], ""
    tcp = (TCP, "TCP")
    if not shared_memory.is_shared(memories):
        return [tcp], ""
    if why_not := shared_memory.namespace_conflict(cluster, memories, networks):
        return [tcp], why_not
    if why_not := shared_memory.insufficient_space(cluster, memories, free):
        return [(SINGLE_COPIES, "single copies and TCP"), tcp], why_not
    mixed = ", and TCP between hosts" if len(set(memories)) > 1 else ""
    return [(SHARED_MEMORY, f"shared memory{mixed}"), tcp], ""


def _attempt(
    all_workers: StartupExchange, transports: str
) -> tuple[Mesh | None, str, dict[int, SocketAddress], str]:
    """Try a candidate; all workers return at the same point.

    Returns:
        The mesh of this process, its interface, the ports of UCX to which it is connected, and ""
        if all workers have a mesh. Otherwise None, and last what has failed on which workers.
    """
    functions, cluster = library.opened(), all_workers.cluster
    number, device, address, ports, failure = _opened(functions, cluster, transports)
    facts = [[each.endpoint for each in ports], *shared_memory.own_mark()]
    own = json.dumps(facts).encode() + b"\n" + address
    failure, lengths = all_workers.gather(failure, len(own))
    endpoints: dict[int, list[SocketAddress]] = {}
    if not failure:
        received = all_workers.bytes_of_all(own, lengths[:, 0].tolist())
        marks = {}
        for rank, each in enumerate(received):
            of_rank, *marks[rank] = json.loads(each.partition(b"\n")[0])
            endpoints[rank] = [(*endpoint,) for endpoint in of_rank]
        del endpoints[cluster.rank]
        why = ucx_port.unreachable(cluster, endpoints)
        if transports in (SHARED_MEMORY, SINGLE_COPIES):
            why = why or shared_memory.forbidden_copy(cluster, marks)
        failure, _ = all_workers.gather(why)
    if not failure:
        addresses = [each.partition(b"\n")[2] for each in received]
        failure, _ = all_workers.gather(_failure_of(lambda: functions.connect(number, addresses)))
    if not failure:
        workers = len(cluster.addresses)
        sizes = SMALL, max(2**16, min(LARGE, LARGE_IN_ALL // workers))

        def exchange() -> None:
            for count, size in enumerate(sizes):
                functions.attempt(number, cluster.rank, workers, count, size, PATIENCE_SECONDS)

        failure, _ = all_workers.gather(_failure_of(exchange))
    if failure and number >= 0:
        functions.close(number)
    ucx_port.close(ports)  # existing connections stay
    mesh = None if failure else Mesh(number)
    return mesh, device, ucx_port.connected(endpoints), failure


def _failure_of(act: Callable[[], object]) -> str:
    """Return why a function has failed; "" if it has not failed."""
    try:
        act()
    except RuntimeError as error:
        return str(error)
    return ""


def _opened(
    functions: library.Library, cluster: Cluster, transports: str
) -> tuple[int, str, bytes, list[ucx_port.Listener], str]:
    """Return the number of a new mesh, its interface, address and ports, and what has failed."""
    try:
        device = network_interface.interface_for(cluster)
        functions.probe_in_subprocess(transports or SHARED_MEMORY, device)
        before = ucx_port.listening()
        number = functions.create(transports or SHARED_MEMORY, device)
    except (RuntimeError, OSError) as error:
        return -1, "", b"", [], str(error)
    address = functions.address(number)
    return number, device, address, ucx_port.of_mesh(before, address), ""
