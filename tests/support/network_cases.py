"""Faults of the network between workers: the rows of a table, and tests.

Every case has to end in one of two ways, on every worker: it trains to the weights of an unbroken
run, or an error that names another worker comes within a bound. The timeouts are the defaults.
"""

import dataclasses
import functools
import re
import signal
from collections.abc import Callable

from support import faults
from support.network import Network
from support.pace import PACE

# Seconds within which an error comes: after a silence of 30 s, on a busy machine; of 60 s; and of
# workers that all wait, 120 s.
LONGEST_DETECTION = 45.0
WHOLE_START = 80.0
WIDE = 300  # 0.4 MB of weights
LATE = 60.0  # seconds for which an error that is late is waited for


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that happens to a network, and what workers have to do.

    Attributes:
        name: a row of the table.
        steps: pairs of seconds from the injection point and what happens then.
        injection_point: of training, see `faulty_worker`; "before": before the workers start.
        victim: the worker that reaches the injection point.
        workers: how many.
        seconds_to_report: seconds from the injection point, on a quiet machine, within which every
            worker has to say something.
        must_train: whether all have to train to the end; False: whether all have to end in an
            error; None: either.
        error_pattern: pattern in each error. Defaults to None: the name of another worker.
        awaited: ranks of the workers that are to end by themselves. Defaults to None: all.
        hosts: function of the `Network` that returns the hosts in the workers' addresses. Defaults
            to None: those of IPv4.
        width: of the model's layers: the messages of a wide one take many packets.
        port: whether it happens to a port, which workers that join choose by themselves.
    """

    name: str
    steps: tuple = ()
    injection_point: str = "step"
    victim: int = 1
    workers: int = 2
    seconds_to_report: float = LONGEST_DETECTION
    must_train: bool | None = None
    error_pattern: str | None = None
    awaited: tuple | None = None
    hosts: Callable | None = None
    width: int = 4
    port: bool = False


# What happens, as functions of the network and the workers' processes.


def between(source=None, target=None, **conditions):
    return lambda network, processes: network.set(source, target, **conditions)


def cut(host):
    return lambda network, processes: network.cut(host)


def heal(network, processes):
    network.heal()


def send(number, rank):
    return lambda network, processes: processes[rank].send_signal(number)


def cut_link(one, other):
    def cut_both_ways(network, processes):
        network.set(one, other, cut=True)
        network.set(other, one, cut=True)

    return cut_both_ways


def slow(name, width=4, **conditions):
    """A network that is so from the start."""
    options = {"seconds_to_report": 240.0, "must_train": True, "width": width}
    return Case(name, ((0, between(**conditions)),), "before", **options)


def of_ipv6(network):
    return [f"[{host.address6}]" for host in network.hosts]


UNBROKEN = Case("nothing", seconds_to_report=120.0, must_train=True)

CASES = [
    UNBROKEN,
    slow("20 ms delay, 1 % loss", delay=0.01, loss=0.01),
    slow("10 Mbit/s", rate=10e6, width=WIDE),
    Case("IPv6", injection_point="before", seconds_to_report=120.0, must_train=True, hosts=of_ipv6),
    Case("worker 1 cut off in a step", ((0, cut(1)),), must_train=False),
    Case(
        "worker 1 cut off in a checkpoint",
        ((0, cut(1)),),
        injection_point="checkpoint",
        victim=0,
        must_train=False,
    ),
    Case("worker 1 cut off for 5 s in a step", ((0, cut(1)), (5, heal)), must_train=True),
    Case(
        "worker 1 cut off for the first 20 s",
        ((0, cut(1)), (20, heal)),
        injection_point="before",
        must_train=True,
        seconds_to_report=120.0,
    ),
    Case(
        "the link of workers 1 and 2 cut, three workers",
        ((0, cut_link(1, 2)),),
        workers=3,
        error_pattern=r"worker [12] \(",
        must_train=False,
    ),
    Case(
        "TensorFlow's port blocked in a step",
        ((0, between(without_port=faults.PORT)),),
        seconds_to_report=WHOLE_START,
        must_train=False,
        port=True,
    ),
    Case(
        "worker 1 paused for 10 s in a step",
        ((0, send(signal.SIGSTOP, 1)), (10, send(signal.SIGCONT, 1))),
        must_train=True,
        seconds_to_report=LONGEST_DETECTION + 10,
    ),
    Case(
        "worker 0 gets SIGKILL in a step",
        ((0, send(signal.SIGKILL, 0)),),
        awaited=(1,),
        must_train=False,
    ),
]


def run(case, folder, *, strategy="adasum", **options):
    """Run a case; return a dict from ranks to `faults.Outcome`.

    Args:
        case: the `Case`.
        folder: an empty one.
        strategy: "adasum"; "joined", the same where workers know worker 0's address alone; "stock".
        options: further ones of `faults.run`.
    """
    with Network(case.workers) as network:
        own = [host.address for host in network.hosts]
        hosts = case.hosts(network) if case.hosts else own
        return faults.run(
            folder,
            workers=case.workers,
            victim=case.victim,
            limit=case.seconds_to_report + LATE,
            awaited=case.awaited or range(case.workers),
            popens=[host.popen for host in network.hosts],
            hosts=hosts,
            is_joining=strategy == "joined",
            steps=[(when, functools.partial(what, network)) for when, what in case.steps],
            injection_point=case.injection_point,
            strategy=strategy,
            width=case.width,
            **options,
        )


def unbroken(case):
    """The case without what happens, to whose weights it has to train."""
    return dataclasses.replace(UNBROKEN, workers=case.workers, width=case.width)


def violations(case, outcomes, expected):
    """Return what is not as it has to be, as texts.

    Args:
        case: the `Case`.
        outcomes: of `run`.
        expected: digest of the weights of an unbroken run.
    """
    found = []
    for rank, outcome in outcomes.items():
        words = last_output(outcome)
        others = "".join(str(other) for other in range(case.workers) if other != rank)
        # The other one, also as TensorFlow does.
        names = case.error_pattern or rf"(worker |/job:worker/task:)[{others}]\b"
        if outcome.digest:
            if case.must_train is False:
                found.append(f"worker {rank} trains on, so nothing has happened to it")
            if outcome.digest != expected:
                found.append(f"worker {rank} has other weights than without it")
        elif not words:
            found.append(f"worker {rank} reports nothing")
        elif case.must_train:
            found.append(f"worker {rank} does not continue")
        elif "not made the same calls" in words:
            found.append(f"worker {rank} blames the program, which is the same on all")
        elif not re.search(names, words):
            found.append(f"worker {rank} names no other worker")
        longest = case.seconds_to_report * PACE
        if (words or outcome.digest) and seconds_of(outcome) > longest:
            found.append(f"worker {rank} takes {seconds_of(outcome):.0f} s, not {longest:.0f}")
    if len({outcome.digest for outcome in outcomes.values()}) > 1:
        found.append("not all workers train to the same end")
    return found


def last_output(outcome):
    """Return what a worker has said why it ended; "" if it trained to the end or said nothing."""
    guard = [line for line in outcome.output.splitlines() if "in TensorFlow's start-up" in line]
    if outcome.error is None and guard:
        return guard[-1]
    return f"{outcome.error}: {outcome.message}" if outcome.error else ""


def seconds_of(outcome):
    return outcome.seconds if outcome.seconds is not None else outcome.seconds_to_end
