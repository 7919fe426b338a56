"""The trial: small exchanges at the start, after which all workers let the same carry gradients.

A way is what UCX may use. On a host shared memory is the fastest where processes may copy from each
other's memory. Where they may not (other users, some containers) or /dev/shm is full, it may be
slower than TCP, or fail. So each way is tried: it has to bring the bytes that were sent, on all
workers. The first one counts unless another is much faster; TensorFlow's own collectives gather as
many bytes for comparison.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from tf_adasum.cluster.tasks import Cluster
from tf_adasum.errors import see
from tf_adasum.transport import choice, interface, library
from tf_adasum.transport.mesh import Mesh
from tf_adasum.transport.talk import Gather, Talk

# Shared memory with single copies between processes of a host, else TCP; and TCP alone.
SHARED_MEMORY, TCP = "posix,cma,tcp,self", "tcp,self"
VARIABLE = "UCX_TLS"  # where the user has chosen, that is the only way

# Bytes to each worker: of gradients of some MB, which travel by reference; fewer where there are
# so many workers that these would add up. The small ones are there to make the connections.
SMALL, LARGE, LARGE_IN_ALL = 2**10, 2**21, 2**24
TIMES, SLOW_SECONDS = 4, 0.5
SECONDS = 10.0  # after which an exchange has failed
# A way takes the place of the first one if that takes so many times as long: a busy machine makes
# less of a difference by chance.
MUCH = 1.5

_channels = itertools.count()
_carriers: dict[tuple[Cluster, str], Carrier] = {}


@dataclasses.dataclass(frozen=True)
class Carrier:
    """What carries the gradients of a strategy.

    Attributes:
        mesh: the `Mesh`; None for TensorFlow's collectives.
        summary: what is said of it at the start, and why it is that.
    """

    mesh: Mesh | None
    summary: str


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What has come of a way, the same on all workers but for the number.

    Attributes:
        way: its name.
        number: of this process's mesh; -1 where there is none.
        device: the interface on which it listens.
        failure: what has failed and where; "" if nothing.
        seconds: of the exchange, on the slowest worker.
    """

    way: str
    number: int
    device: str
    failure: str
    seconds: float


def carrier(
    cluster: Cluster,
    transport: str,
    devices: Sequence[str],
    gather: Gather,
    is_watched: bool = True,
) -> Carrier:
    """Return what carries the gradients of another strategy; every worker has to call it.

    Args:
        cluster: the `Cluster`.
        transport: "ucx", or "auto" for what is faster.
        devices: names of this worker's devices.
        gather: function of this worker's int64 array ``[k]`` that returns those of all workers,
            ``[W, k]``, by TensorFlow's collectives.
        is_watched: whether this worker's watch is on. Defaults to True.

    Raises:
        Unavailable: on all workers, for "ucx" where it cannot be used on one of them.
    """
    talk, kept = Talk(cluster, gather), _carriers.get((cluster, transport))
    missing = choice.obstacle(devices, len(cluster.addresses)) or _missing()
    if transport == choice.AUTO and not is_watched:
        missing = "without the watch it would wait for a lost worker for ever"
    own = [kept is not None, VARIABLE in os.environ, next(_channels)]
    failure, numbers = talk.tell(missing, *own)
    are_kept, are_given, channels = numbers.T
    if kept is None or not are_kept.all():  # on one worker they were ended: all need new ones
        kept = _tried(cluster, transport, talk, gather, len(devices), failure, are_given.any())
        _carriers[cluster, transport] = kept
    if kept.mesh is None:
        return kept
    return dataclasses.replace(kept, mesh=Mesh(kept.mesh.number, int(channels.max())))


def forget() -> None:
    """Make new connections for the next strategy: those of this process have been ended."""
    _carriers.clear()


def chosen(
    attempts: Sequence[Attempt], stock_seconds: float, transport: str
) -> tuple[Attempt | None, str]:
    """Return the attempt that is taken, None for TensorFlow's collectives, and why.

    Args:
        attempts: all, in the order in which they are preferred.
        stock_seconds: of the same exchange by TensorFlow's collectives.
        transport: "ucx", or "auto" for what is faster.
    """
    good = [attempt for attempt in attempts if not attempt.failure]
    reasons = [f"{each.way} fails: {each.failure}" for each in attempts if each.failure]
    if not good:
        return None, "UCX over " + "; ".join(reasons)
    first = best = good[0]
    for other in good[1:]:
        if other.seconds * MUCH < best.seconds:
            best = other
    if best is not first:
        reasons.append(f"{first.way} is slower: {_ms(first.seconds)}")
    times = f"{_ms(best.seconds)}, TensorFlow's collectives: {_ms(stock_seconds)}"
    if best.seconds > stock_seconds:
        if transport == choice.AUTO:
            return None, "; ".join([f"UCX over {best.way} is slower: {times}", *reasons])
        reasons.insert(0, "which are faster here")
    return best, "; ".join([times, *reasons])


def large(workers: int) -> int:
    """Return the bytes that each worker sends to each other one."""
    return max(2**16, min(LARGE, LARGE_IN_ALL // workers))


def _missing():
    try:
        library.opened()
    except library.Unavailable as error:
        return str(error)
    return ""


def _tried(cluster, transport, talk, gather, devices, failure, is_given):
    """Return the `Carrier` after a trial, if nothing is missing."""
    if failure:
        best, why = None, f"UCX is not used: {failure}"
    else:
        attempts = [_attempt(cluster, talk, *way) for way in _ways(cluster, is_given)]
        stock_seconds = 0.0
        if not all(each.failure for each in attempts):
            words = large(len(cluster.addresses)) // 8 // devices
            stock_seconds = _stock_seconds(talk, gather, words)
        best, why = chosen(attempts, stock_seconds, transport)
        for each in attempts:
            if each is not best and each.number >= 0:
                library.opened().close(each.number)
    if best is not None:
        what = f"UCX {library.opened().version} ({best.way}; {best.device})"
        return Carrier(Mesh(best.number), f"{what}: {why}")
    if transport == choice.UCX:
        raise library.Unavailable(
            f"transport='ucx' cannot be used: {why}. Use transport='auto' on all workers, or make "
            f"UCX work on all of them. {see('TFA-213')}"
        )
    return Carrier(None, f"TensorFlow's collectives ({why})")


def _ways(cluster, is_given):
    """Return what UCX may use, and how that is called, in the order in which it is preferred."""
    if is_given:
        return [("", f"{VARIABLE}={os.environ.get(VARIABLE, '')}")]
    hosts = {cluster.host_and_port(rank)[0] for rank in range(len(cluster.addresses))}
    if len(hosts) == len(cluster.addresses):  # by their names: containers may share a machine
        return [(TCP, "TCP"), (SHARED_MEMORY, "shared memory")]
    mixed = "shared memory, and TCP between hosts"
    return [(SHARED_MEMORY, mixed if len(hosts) > 1 else "shared memory"), (TCP, "TCP")]


def _attempt(cluster, talk, transports, way):
    """Try a way; all workers leave at the same place."""
    functions = library.opened()
    number, device, address, failure = _opened(functions, cluster, transports)
    failure, lengths = talk.tell(failure, len(address))
    seconds = 0.0
    if not failure:
        addresses = talk.bytes_of_all(address, lengths[:, 0])
        failure, _ = talk.tell(_failure(lambda: functions.connect(number, addresses)))
    if not failure:
        counter, workers = itertools.count(), len(cluster.addresses)

        def exchange(size):
            place = (number, cluster.rank, workers, next(counter))
            return functions.attempt(*place, size, SECONDS)

        failure, _ = _measured(talk, lambda: exchange(SMALL), times=0)
    if not failure:
        failure, seconds = _measured(talk, lambda: exchange(large(workers)))
    return Attempt(way, number, device, failure, seconds)


def _opened(functions, cluster, transports):
    """Return the number of a new mesh, its interface and address, and why there is none."""
    try:
        device = interface.of(cluster)
        number = functions.create(transports or SHARED_MEMORY, device)
    except (RuntimeError, OSError) as error:
        return -1, "", b"", str(error)
    return number, device, functions.address(number), ""


def _stock_seconds(talk, gather, words):
    def exchange():
        begun = time.perf_counter()
        gather(np.zeros(words, np.int64))
        return time.perf_counter() - begun

    _, seconds = _measured(talk, exchange)
    return seconds


def _measured(talk, exchange, times=TIMES):
    """Return what has failed on any worker, and the least seconds of some times on the slowest one.

    Over a slow network it counts after the first time, which otherwise does not.
    """
    failure, seconds = _least(talk, exchange, 1)
    if failure or not times or seconds > SLOW_SECONDS:
        return failure, seconds
    return _least(talk, exchange, times)


def _least(talk, exchange, times):
    seconds: list[float] = []
    failure = _failure(lambda: seconds.extend(exchange() for _ in range(times)))
    failure, took = talk.tell(failure, int(1e9 * min(seconds, default=0)))
    return failure, took.max() / 1e9


def _failure(act: Callable[[], None]) -> str:
    """Return why an act has failed, "" if it has not."""
    try:
        act()
    except RuntimeError as error:
        return str(error)
    return ""


def _ms(seconds):
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"
