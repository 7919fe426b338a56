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

# Seconds within which an error comes: after a silence of 30 s, on a busy machine; of 60 s; and of
# workers that all wait, 120 s.
LONGEST_DETECTION = 45.0
WHOLE_START = 80.0
WHOLE_PATIENCE = 150.0
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
        seconds_to_report: seconds from the injection point within which every worker has to say
            something.
        must_train: whether all have to train to the end; None if an error is accepted as well.
        error_pattern: pattern in each error. Defaults to None: the name of another worker.
        awaited: ranks of the workers that are to end by themselves. Defaults to None: all.
        hosts: function of the `Network` that returns the hosts in the workers' addresses. Defaults
            to None: those of IPv4.
        num_fits: how many times the workers train.
        width: of the model's layers: the messages of a wide one take many packets.
        seconds_per_step: at least, so that training lasts until something is noticed.
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
    num_fits: int = 1
    width: int = 4
    seconds_per_step: float = 0.0
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


def slow(name, *, must_train=True, seconds_to_report=240.0, width=4, **conditions):
    """A network that is so from the start."""
    steps = ((0, between(**conditions)),)
    return Case(
        name,
        steps,
        "before",
        seconds_to_report=seconds_to_report,
        must_train=must_train,
        width=width,
    )


def blocked(name, injection_point="step", seconds_per_step=0.0, **conditions):
    """A port is blocked."""
    steps = ((0, between(**conditions)),)
    own = {"seconds_to_report": WHOLE_START, "seconds_per_step": seconds_per_step, "port": True}
    return Case(name, steps, injection_point, **own)


def healing(seconds, name=None, **options):
    name = name or f"worker 1 cut off for {seconds} s in a step"
    return Case(name, ((0, cut(1)), (seconds, heal)), **options)


def elsewhere(name, rank, host):
    """The address of a worker has another host."""

    def hosts(network):
        addresses = [each.address for each in network.hosts]
        addresses[rank] = host
        return addresses

    return Case(name, injection_point="before", hosts=hosts, seconds_to_report=WHOLE_START)


def paused(seconds, must_train=None):
    """A worker is stopped, and continues; it may then learn that it was declared lost itself."""
    steps = ((0, send(signal.SIGSTOP, 1)), (seconds, send(signal.SIGCONT, 1)))
    name = f"worker 1 paused for {seconds} s in a step"
    return Case(
        name,
        steps,
        must_train=must_train,
        error_pattern=r"worker 1\b",
        seconds_to_report=LONGEST_DETECTION + seconds,
    )


def of_ipv6(network):
    return [f"[{host.address6}]" for host in network.hosts]


UNBROKEN = Case("nothing", seconds_to_report=120.0, must_train=True)

CASES = [
    UNBROKEN,
    slow("20 ms delay, 1 % loss", delay=0.01, loss=0.01),
    slow("200 ms delay", delay=0.1),
    slow("200 ms delay, 100 ms jitter", delay=0.1, jitter=0.05),
    slow("5 % loss", loss=0.05),
    slow("10 Mbit/s", rate=10e6, width=WIDE),
    slow(
        "packets over 1280 bytes are dropped silently",
        longest=1280,
        width=WIDE,
        must_train=None,
        seconds_to_report=WHOLE_PATIENCE,
    ),
    Case("IPv6", injection_point="before", seconds_to_report=120.0, must_train=True, hosts=of_ipv6),
    Case("worker 1 cut off in a step", ((0, cut(1)),)),
    Case("worker 0 cut off in a step, three workers", ((0, cut(0)),), workers=3),
    Case(
        "worker 1 cut off in a checkpoint", ((0, cut(1)),), injection_point="checkpoint", victim=0
    ),
    Case(
        "worker 1 cut off between two calls of fit",
        ((0, cut(1)),),
        injection_point="between",
        num_fits=2,
    ),
    healing(5, must_train=True),
    healing(15),  # longer than TensorFlow's own connections last
    healing(20),
    healing(45),
    healing(
        15,
        "worker 1 cut off for 15 s between two calls of fit",
        injection_point="between",
        num_fits=2,
    ),
    Case("nothing gets from worker 1 to 0", ((0, between(1, 0, cut=True)),)),
    Case("nothing gets from worker 0 to 1", ((0, between(0, 1, cut=True)),)),
    Case(
        "the link of workers 1 and 2 cut, three workers",
        ((0, cut_link(1, 2)),),
        workers=3,
        error_pattern=r"worker [12] \(",
    ),
    blocked("TensorFlow's port blocked in a step", without_port=faults.PORT),
    blocked(
        "all but TensorFlow's port blocked in a step, while training takes another minute",
        seconds_per_step=2.5,
        only_port=faults.PORT,
    ),
    blocked("all but TensorFlow's port blocked from the start", "before", only_port=faults.PORT),
    paused(10, must_train=True),
    paused(45),
    Case("worker 1 gets SIGKILL in a step", ((0, send(signal.SIGKILL, 1)),), awaited=(0,)),
    Case("worker 0 gets SIGKILL in a step", ((0, send(signal.SIGKILL, 0)),), awaited=(1,)),
    Case(
        "worker 1 cut off from the start",
        ((0, cut(1)),),
        injection_point="before",
        seconds_to_report=WHOLE_START,
    ),
    healing(
        20,
        "worker 1 cut off for the first 20 s",
        must_train=True,
        injection_point="before",
        seconds_to_report=120.0,
    ),
    Case(
        "worker 1 cut off when TensorFlow starts",
        ((0, cut(1)),),
        "start",
        seconds_to_report=WHOLE_START,
    ),
    healing(
        15,
        "worker 1 cut off for 15 s when TensorFlow starts",
        injection_point="start",
        seconds_to_report=WHOLE_START,
    ),
    elsewhere("no host has worker 1's address", 1, "10.77.0.99"),
    elsewhere("worker 1's host name does not exist", 1, "no-such-host.invalid"),
    elsewhere("no host has worker 0's address", 0, "10.77.0.99"),
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
        is_wrong = {*hosts} - {*own, *(f"[{host.address6}]" for host in network.hosts)}
        joining = [host if host in is_wrong else None for host in hosts]
        return faults.run(
            folder,
            workers=case.workers,
            victim=case.victim,
            limit=case.seconds_to_report + LATE,
            awaited=case.awaited or range(case.workers),
            popens=[host.popen for host in network.hosts],
            hosts=hosts,
            joining=joining if strategy == "joined" else None,
            steps=[(when, functools.partial(what, network)) for when, what in case.steps],
            injection_point=case.injection_point,
            strategy=strategy,
            num_fits=case.num_fits,
            width=case.width,
            seconds_per_step=case.seconds_per_step,
            **options,
        )


def unbroken(case):
    """The case without what happens, to whose weights it has to train."""
    same = {name: getattr(case, name) for name in ("workers", "num_fits", "width")}
    return dataclasses.replace(UNBROKEN, **same)


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
        # The other one, also as TensorFlow does; or a variable of its own that is wrong.
        named = rf"(worker |/job:worker/task:)[{others}]\b|TF_ADASUM_INTERFACE"
        names = case.error_pattern or named
        if outcome.digest:
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
        if (words or outcome.digest) and seconds_of(outcome) > case.seconds_to_report:
            found.append(
                f"worker {rank} takes {seconds_of(outcome):.0f} s, not {case.seconds_to_report:.0f}"
            )
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
