"""Tries the transports in an exchange at start-up, and chooses one transport for all workers.

UCX itself has several transports, such as shared memory and TCP; `UCX_TLS` selects among them.
Within a host, shared memory is the fastest if processes may copy from each other's memory. If
processes may not (other users, some containers), it may be slower than TCP, so it is not used. The
first candidate that works on all workers is used: it has to deliver the bytes that were sent.
"""

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.cluster.timeouts import PATIENCE_SECONDS
from tf_adasum.errors import see
from tf_adasum.transport import argument, library, network_interface, shared_memory, ucx_port
from tf_adasum.transport.library import Mesh
from tf_adasum.transport.ucx_port import SocketAddress

# Values of UCX_TLS: shared memory; copies between the memories of two processes of a host, with
# messages over TCP; only TCP.
SHARED_MEMORY, SINGLE_COPIES, TCP = shared_memory.TRANSPORTS, "cma,tcp,self", "tcp,self"
VARIABLE = "UCX_TLS"  # if the user has set this variable, its value is the only candidate

# Bytes that are sent to each worker. LARGE is large enough that UCX sends by reference, as it does
# for gradients of some MB. LARGE_IN_ALL limits the bytes to all workers together.
SMALL, LARGE, LARGE_IN_ALL = 2**10, 2**21, 2**24

Candidates = list[tuple[str, str]]  # pairs of a value for UCX_TLS, and a name
Share = Callable[..., tuple[str, list[list[Any]]]]  # `_shared`, without its first two arguments


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


_channels = itertools.count()
_choices: dict[tuple[Cluster, str], TransportChoice] = {}


def select(
    cluster: Cluster,
    transport: str,
    devices: Sequence[str],
    texts_of_all: Callable[[str], list[str]],
) -> TransportChoice:
    """Return the transport of a new strategy; every worker has to call this.

    Args:
        cluster: the `Cluster`.
        transport: "ucx", or "auto" for UCX if it works.
        devices: names of this worker's devices.
        texts_of_all: function that takes this worker's text and returns the texts of all workers,
            over TensorFlow's collectives.

    Raises:
        UcxUnavailableError: on all workers, if `transport` is "ucx" and one worker cannot use UCX.
    """
    share = functools.partial(_shared, cluster, texts_of_all)
    kept = _choices.get((cluster, transport))
    missing = argument.unsupported_reason(devices, len(cluster.addresses))
    missing = missing or _failure_of(library.opened)
    own = [kept is not None, VARIABLE in os.environ, next(_channels), *shared_memory.facts()]
    failure, facts = share(missing, *own)
    are_kept, are_given, channels, *of_memory = zip(*facts, strict=True)
    if kept is None or not all(are_kept):  # if any worker has closed its mesh, all need a new one
        candidates, why_not = _candidates(cluster, any(are_given), of_memory)
        reasons = [failure and f"UCX is not used: {failure}", why_not]
        kept = _tried(cluster, transport, share, [] if failure else candidates, reasons)
        _choices[cluster, transport] = kept
    return dataclasses.replace(kept, mesh=kept.mesh and Mesh(kept.mesh.number, max(channels)))


def forget() -> None:
    """Let the next strategy make new connections, because the present connections were closed."""
    _choices.clear()


def _shared(
    cluster: Cluster, texts_of_all: Callable[[str], list[str]], failure: str, *values: Any
) -> tuple[str, list[list[Any]]]:
    """Exchange what has failed, and other values, with all workers, which all have to call this.

    Args:
        cluster: the `Cluster`.
        texts_of_all: as for `select`.
        failure: what has failed on this worker; "" if nothing has failed.
        values: values of JSON types.

    Returns:
        Two values, which are the same on all workers: a text with what has failed on which workers
        ("" if nothing has failed), and the list of the values of each worker.
    """
    rows = [json.loads(each) for each in texts_of_all(json.dumps([failure, *values]))]
    texts = [text for text, *_ in rows]
    first = next(filter(None, texts), "")
    if {*texts} != {first}:
        failed = [rank for rank, text in enumerate(texts) if text]
        first = f"{cluster.named(failed)}: {first}"
    return first, [of_worker for _, *of_worker in rows]


def _tried(
    cluster: Cluster, transport: str, share: Share, candidates: Candidates, reasons: list[str]
) -> TransportChoice:
    """Return the `TransportChoice` with the first candidate that works.

    Args:
        cluster: the `Cluster`.
        transport: "ucx" or "auto".
        share: function that exchanges what has failed with all workers.
        candidates: the candidates, preferred ones first.
        reasons: why other transports are not used; "" for no reason. Candidates that fail are
            added.
    """
    for transports, name in candidates:
        mesh, device, endpoints, failure = _attempt(cluster, share, transports)
        if mesh:
            why = "; ".join(filter(None, reasons))
            summary = f"UCX {library.opened().version} ({name}; {device}){why and f': {why}'}"
            return TransportChoice(mesh, summary, endpoints)
        reasons.append(f"UCX over {name} fails: {failure}")
    why = "; ".join(filter(None, reasons))
    if transport == argument.UCX:
        raise library.UcxUnavailableError(
            f"transport='ucx' cannot be used: {why}. Use transport='auto' on all workers, or make "
            f"UCX work on all of them. {see('TFA-213')}"
        )
    return TransportChoice(None, f"TensorFlow's collectives ({why})")


def _candidates(
    cluster: Cluster, is_given: bool, of_memory: Sequence[Sequence[int]]
) -> tuple[Candidates, str]:
    """Return the candidates, preferred ones first, and why shared memory is not used.

    Args:
        cluster: the `Cluster`.
        is_given: whether a user has set ``UCX_TLS``.
        of_memory: the `shared_memory.facts` of all workers: each fact of each worker.
    """
    memories, networks, free = of_memory
    if is_given:
        return [("", f"{VARIABLE}={os.environ.get(VARIABLE, '')}")], ""
    tcp = (TCP, "TCP")
    if len(set(memories)) == len(memories):  # no two workers share memory
        return [tcp], ""
    if why_not := shared_memory.namespace_conflict(cluster, memories, networks):
        return [tcp], f"no shared memory: {why_not}"
    if why_not := shared_memory.insufficient_space(cluster, memories, free):
        return [(SINGLE_COPIES, "single copies and TCP"), tcp], f"no shared memory: {why_not}"
    mixed = ", and TCP between hosts" if len(set(memories)) > 1 else ""
    return [(SHARED_MEMORY, f"shared memory{mixed}"), tcp], ""


def _attempt(
    cluster: Cluster, share: Share, transports: str
) -> tuple[Mesh | None, str, dict[int, SocketAddress], str]:
    """Try a candidate; all workers return at the same point.

    Returns:
        The mesh of this process, its interface, the ports of UCX to which it is connected, and ""
        if all workers have a mesh. Otherwise None, and last what has failed on which workers.
    """
    functions = library.opened()
    number, device, address, ports, failure = _opened(functions, cluster, transports)
    own_ends = [each.endpoint for each in ports]
    failure, facts = share(failure, own_ends, shared_memory.own_mark(), address.hex())
    endpoints: dict[int, list[SocketAddress]] = {}
    if not failure:
        ends, marks, addresses = zip(*facts, strict=True)
        endpoints = {rank: [(*each,) for each in of_rank] for rank, of_rank in enumerate(ends)}
        del endpoints[cluster.rank]
        why = ucx_port.unreachable(cluster, endpoints)
        if transports in (SHARED_MEMORY, SINGLE_COPIES):
            why = why or shared_memory.forbidden_copy(cluster, marks)
        failure, _ = share(why)
    if not failure:
        failure, _ = share(_failure_of(functions.connect, number, [*map(bytes.fromhex, addresses)]))
    if not failure:
        workers = len(cluster.addresses)
        sizes = SMALL, max(2**16, min(LARGE, LARGE_IN_ALL // workers))

        def exchange() -> None:
            for count, size in enumerate(sizes):
                functions.attempt(number, cluster.rank, workers, count, size, PATIENCE_SECONDS)

        failure, _ = share(_failure_of(exchange))
    if failure and number >= 0:
        functions.close(number)
    ucx_port.close(ports)  # existing connections stay
    mesh = None if failure else Mesh(number)
    return mesh, device, ucx_port.connected(endpoints), failure


def _failure_of(act: Callable[..., object], *arguments: Any) -> str:
    """Return why a function has failed; "" if it has not failed."""
    try:
        act(*arguments)
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
