"""The cost model estimates which radix plan takes the least time for a bucket.

It adds the α-β model of communication and the time of the arithmetic, which grows with the radix.
For a bucket of n bytes and S segments, level l of a plan ``[R_1 … R_m]`` processes
``n_l = n / (R_1 ⋯ R_{l-1})`` bytes, and its Gram matrices are summed over ``P_l = R_1 ⋯ R_l``
replicas:

    all-to-all and all-gather      2 p α + 2 (R_l - 1) (p α + β n_l / R_l)
    all-reduce of G                α + (P_l - 1) (α + β g_l)             if P_l g_l ≤ 1 MiB
                                   α + 2 (P_l - 1) (α + β g_l / P_l)     otherwise, by a ring
    Gram matrix, weighted sum      γ n_l ((R_l + 1) / 2 + 1)

A bucket that every replica gathers and combines takes ``N α + (N-1) β n + γ N n ((N+1)/2 + 1)``.
The inner products have ``g_l = 8 S R_l (R_l + 1) / 2`` bytes. A large bucket is sent in p pieces. A
collective costs one α more than its messages, because its members first wait for each other.

A rule without inner products, such as a sum, has no all-reduce of G, and ``γ n_l`` of arithmetic.

If several replicas share each of several hosts, the model adds α_h for each message that a replica
sends to another host, and β_h for each byte that leaves a host, see `Hosts`. On each level, a
replica sends messages to the members of its group on other hosts.

The sum of ``n_l (R_l - 1) / R_l`` over the levels is the same for every plan. So on one host, plans
differ only in the number of messages, the Gram matrices and the arithmetic. ``[N]`` has the fewest
collectives. Between hosts, the bytes differ too. With L replicas on each of H hosts, ``[N]`` sends
``2 n L (H-1) / H`` bytes from each host, and ``[L, H]`` sends L times fewer.

For large N, the ``n N / 2`` products and ``S N² / 2`` numbers of ``[N]`` cost more than the
collectives that it saves.

``python benchmarks/exchange.py --fit`` (``--fit ucx`` over UCX) fits α, β and γ, and prints the
variable to set in the environment of every worker.
"""

import dataclasses
import functools
import itertools
import json
import math
import operator
import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tf_adasum.aggregation import buckets, groups, radix_plans
from tf_adasum.environment_variables import COST_MODEL, HOST_LINK

# Up to this many replicas, the shipped constants choose only between one level and plans that
# follow the hosts, because they underestimate the time of plans with several levels. On 4 processes
# we measured that [2, 2] takes 1.08 to 1.28 times as long as [4]; the constants predict 1.02 to
# 1.15. For 8 replicas, the constants predict that several levels take less time, but by less than
# this error.
MOST_ON_ONE_LEVEL = 16


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts with several replicas each, and the links between the hosts.

    Args:
        replicas: L, the number of replicas on each host. Their ranks are consecutive.
        alpha: α_h, the seconds that a message takes in addition if it leaves its host. Defaults to
            50 µs.
        beta: β_h, the seconds to send a byte over the link of a host, which the replicas of the
            host share. Defaults to 8e-10, which is 10 Gbit/s.
    """

    replicas: int
    alpha: float = 5e-5
    beta: float = 8e-10

    @classmethod
    def measured(cls, replicas: int, own_host: str | None = None) -> "Hosts":
        """Return the hosts, with the links in the environment variable ``TF_ADASUM_HOST_LINK``.

        Args:
            replicas: L, the number of replicas on each host.
            own_host: the name of this host. Defaults to `None`: a file is not checked for this
                host.

        Raises:
            ValueError: if the variable is neither of the form ``alpha=5e-5,beta=8e-10`` nor the
                path of a file of ``tf-adasum-doctor --links``, or if the file has the links of
                hosts other than `own_host`.
        """
        text = os.environ.get(HOST_LINK, "")
        if text and not re.match(r"\s*(alpha|beta)\s*=", text):
            return cls.from_file(replicas, text, own_host)
        link = functools.partial(cls, replicas)
        return _read(HOST_LINK, ("alpha", "beta"), "alpha=5e-5,beta=8e-10", link) or link()

    @classmethod
    def from_file(cls, replicas: int, path: str, own_host: str | None = None) -> "Hosts":
        """Return the hosts, with the links in a file of ``tf-adasum-doctor --links``.

        Args:
            replicas: as for `measured`.
            path: the path of the file.
            own_host: as for `measured`.

        Raises:
            ValueError: if this is no such file, or has the links of hosts other than `own_host`.
        """
        try:
            if os.path.exists(path) and not os.path.isfile(path):
                raise ValueError("it is not a regular file")
            with open(path) as file:
                links = json.load(file)
            hosts, alpha, beta = (links[name] for name in ("hosts", "alpha", "beta"))
            if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
                raise ValueError("'hosts' is not a list of names")
            if not all(
                type(each) in (int, float) and 0 <= each < math.inf for each in (alpha, beta)
            ):
                raise ValueError("'alpha' or 'beta' is not a finite number of at least 0")
            alpha, beta = float(alpha), float(beta)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{path!r} is not a file that `tf-adasum-doctor --links` has written: {error!r}. "
                f"You can also set the constants: {HOST_LINK}=alpha=5e-5,beta=8e-10"
            ) from error
        if own_host is not None and own_host not in hosts:
            raise ValueError(
                f"The links in {path!r} were measured on the hosts {', '.join(hosts)}, and this "
                f"worker runs on {own_host}. Measure again with `tf-adasum-doctor --links` on all "
                "workers. If the links of both clusters are equal, set "
                f"{HOST_LINK}=alpha={alpha:.1e},beta={beta:.1e}"
            )
        return cls(replicas, alpha, beta)

    def are_followed_by(self, plan: Sequence[int]) -> bool:
        """Return whether the first levels of a plan combine exactly the replicas of each host."""
        return len(plan) > 1 and self.replicas in itertools.accumulate(plan, operator.mul)

    def seconds(self, messages: float, sent: float) -> float:
        """Return the seconds of a replica's messages to other hosts and a host's bytes, added."""
        return self.alpha * messages + self.beta * sent


@dataclasses.dataclass(frozen=True)
class CostModel:
    """The constants of the cost model, in seconds.

    Args:
        alpha: seconds for a message.
        beta: seconds to send a byte.
        gamma: seconds for one multiplication and addition, per byte of gradients.
    """

    alpha: float
    beta: float
    gamma: float

    def seconds(
        self, plan: Sequence[int], size: float, segments: int, hosts: Hosts | None = None
    ) -> float:
        """Return the seconds that a bucket takes.

        Args:
            plan: the radices of the levels, in order.
            size: n, the size of the bucket in bytes.
            segments: S, the number of segments of the bucket; 0 for a rule without inner products.
            hosts: the `Hosts`. Defaults to `None`: all links are the same.
        """
        messages, sent, products = amounts(plan, size, segments)
        seconds = self.alpha * messages + self.beta * sent + self.gamma * products
        if hosts is None:
            return seconds
        return seconds + hosts.seconds(*amounts_between_hosts(plan, size, segments, hosts.replicas))

    def gather_seconds(
        self, replicas: int, size: float, segments: int = 1, hosts: Hosts | None = None
    ) -> float:
        """Return the seconds of a bucket that every replica gathers from all N and combines.

        Args:
            replicas: N.
            size: n, the size of the bucket in bytes.
            segments: as for `seconds`. Defaults to 1.
            hosts: as for `seconds`.
        """
        products = replicas * size * ((replicas + 1) / 2 + 1 if segments else 1)
        sent = (replicas - 1) * size
        seconds = self.alpha * replicas + self.beta * sent + self.gamma * products
        if hosts is None:
            return seconds
        messages, of_host = _members_elsewhere(1, replicas, hosts.replicas)
        return seconds + hosts.seconds(messages, of_host * size)

    def ring_seconds(self, replicas: int, size: float, hosts: Hosts | None = None) -> float:
        """Return the seconds of a mean of a bucket by a ring all-reduce, for comparison.

        Args:
            replicas: N.
            size: n, the size of the bucket in bytes.
            hosts: as for `seconds`.
        """
        messages = 2 * (replicas - 1)
        sent = messages * size / replicas
        seconds = self.alpha * messages + (self.beta + self.gamma / 2) * sent
        if hosts is None:
            return seconds
        crosses = hosts.replicas < replicas  # one replica of each host sends to another host
        return seconds + hosts.seconds(messages * crosses, sent * crosses)

    def best(self, replicas: int, size: float, segments: int) -> tuple[int, ...]:
        """Return the fastest of the plans that respect Adasum's tree."""
        plans = radix_plans.tree_plans(replicas)
        return min(plans, key=lambda plan: self.seconds(plan, size, segments))


def amounts(plan: Sequence[int], size: float, segments: int) -> tuple[float, float, float]:
    """Return the amounts that α, β and γ are multiplied by.

    Returns:
        The number of messages, the number of bytes sent, and the number of bytes that are
        multiplied and added, where a byte counts once for each multiplication.
    """
    pieces = max(1, round(size / buckets.PIECE_BYTES))
    messages, sent, products = 0.0, 0.0, 0.0
    members, own = 1, float(size)
    for radix in plan:
        members *= radix
        messages += 2 * pieces * radix  # two collectives: radix - 1 messages and 1 start each
        sent += 2 * (radix - 1) * own / radix
        gram = 8 * segments * radix * (radix + 1) // 2
        if gram and members * gram <= groups.GATHERED_SUM_BYTES:
            messages += members
            sent += (members - 1) * gram
        elif gram:
            messages += 1 + 2 * (members - 1)
            sent += 2 * (members - 1) * gram / members
        products += own * ((radix + 1) / 2 + 1 if gram else 1)
        own /= radix
    return messages, sent, products


def amounts_between_hosts(
    plan: Sequence[int], size: float, segments: int, replicas_per_host: int
) -> tuple[float, float]:
    """Return the amounts that α_h and β_h are multiplied by.

    Args:
        plan: the radices of the levels, in order.
        size: n, the size of the bucket in bytes.
        segments: S, as for `CostModel.seconds`.
        replicas_per_host: L, the number of replicas on each host.

    Returns:
        The number of messages that a replica sends to other hosts, and the number of bytes that
        leave a host. Both are sums over the levels of the largest number on each level.
    """
    pieces = max(1, round(size / buckets.PIECE_BYTES))
    messages, sent = 0.0, 0.0
    members, own = 1, float(size)
    for radix in plan:
        of_replica, of_host = _members_elsewhere(members, radix, replicas_per_host)
        members *= radix
        messages += 2 * pieces * of_replica
        sent += 2 * of_host * own / radix
        gram = 8 * segments * radix * (radix + 1) // 2
        of_replica, of_host = _members_elsewhere(1, members, replicas_per_host)
        if gram and members * gram <= groups.GATHERED_SUM_BYTES:
            messages += of_replica
            sent += of_host * gram
        elif gram:  # as over UCX, an all-to-all and an all-gather of shards
            messages += 2 * of_replica
            sent += 2 * of_host * gram / members
        own /= radix
    return messages, sent


@functools.cache
def _members_elsewhere(stride: int, radix: int, replicas_per_host: int) -> tuple[int, int]:
    """Count the members that replicas have on other hosts, in groups of `radix` replicas.

    Returns:
        The largest number of members that a replica has on other hosts, and the largest sum of
        these numbers over the replicas of a host.
    """
    replicas = np.arange(math.lcm(stride * radix, replicas_per_host))
    first_member = replicas - replicas // stride % radix * stride
    first_of_host = replicas - replicas % replicas_per_host
    # The members are first_member + i * stride, for i from 0 to radix - 1.
    begin, end = (
        np.clip(-((first_member - bound) // stride), 0, radix)
        for bound in (first_of_host, first_of_host + replicas_per_host)
    )
    elsewhere = radix - (end - begin)
    of_hosts = elsewhere.reshape(-1, replicas_per_host).sum(axis=1)
    return int(elsewhere.max()), int(of_hosts.max())


# DEFAULT is for TensorFlow's collectives, from the newest benchmarks/results/*-exchange_fit.md. UCX
# is for UCX, from *-exchange_fit_ucx.md. Both were measured on 2 and 4 processes of one machine.
DEFAULT = CostModel(alpha=9.5e-4, beta=3.3e-9, gamma=1.0e-10)
UCX = CostModel(alpha=2.4e-4, beta=3.2e-10, gamma=6.3e-11)


def default_plan(
    replicas: int,
    size: float,
    segments: int,
    costs: CostModel | None = None,
    default_costs: CostModel = DEFAULT,
    hosts: Hosts | None = None,
    averaged: int = 1,
) -> tuple[int, ...]:
    """Return the plan of a bucket if the user has not chosen a plan.

    Args:
        replicas: N, the number of replicas; with `averaged`, the number of averages.
        size: n, the size of the bucket in bytes.
        segments: S, the number of segments of the bucket; 0 for a rule without inner products.
        costs: a cost model measured on the user's cluster, which chooses for every N. Defaults to
            `None`: the plan is ``[N]`` up to 16 replicas, or the best plan that follows the hosts.
            Above 16, the shipped constants choose.
        default_costs: the shipped constants. Defaults to the constants of TensorFlow's collectives.
        hosts: the `Hosts`. Defaults to `None`: all links are the same.
        averaged: the number of replicas that are averaged on a level before the plan. Defaults to
            1.

    Example:
        >>> default_plan(16, 2**20, 10)
        (16,)
        >>> default_plan(64, 2**20, 10)
        (2, 4, 8)
        >>> default_plan(16, 2**20, 10, CostModel(alpha=0, beta=0, gamma=1))
        (4, 4)
        >>> default_plan(8, 2**24, 10, hosts=Hosts(4))
        (4, 2)
    """
    model, before = costs or default_costs, (averaged,) if averaged > 1 else ()
    plans: Sequence[tuple[int, ...]] = radix_plans.tree_plans(replicas)
    if costs is None and replicas <= MOST_ON_ONE_LEVEL:
        followed = hosts if averaged == 1 else None
        plans = [
            plan
            for plan in plans
            if len(plan) == 1 or (followed and followed.are_followed_by(plan))
        ]
    return min(plans, key=lambda plan: model.seconds((*before, *plan), size, segments, hosts))


def measured() -> CostModel | None:
    """Return the cost model in the environment variable ``TF_ADASUM_COST_MODEL``.

    Returns:
        A `CostModel`, or None if the variable is not set.

    Raises:
        ValueError: if the variable is not of the form ``alpha=1e-4,beta=1e-9,gamma=1e-10``.
    """
    names = [field.name for field in dataclasses.fields(CostModel)]
    return _read(COST_MODEL, names, "alpha=1e-4,beta=1e-9,gamma=1e-10", CostModel)


_Constants = TypeVar("_Constants")


def _read(
    variable: str, names: Sequence[str], example: str, make: Callable[..., _Constants]
) -> _Constants | None:
    """Return what `make` makes of the constants in an environment variable; None if not set."""
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        pairs = dict(part.split("=") for part in text.split(","))
        numbers = {name.strip(): float(number) for name, number in pairs.items()}
        if numbers.keys() != {*names}:
            raise ValueError(f"it must give {', '.join(names)}")
        if not all(0 <= number < math.inf for number in numbers.values()):
            raise ValueError("a number is negative or not finite")
    except ValueError as error:
        raise ValueError(
            f"The environment variable {variable} must be like '{example}', in seconds: {error}. "
            f"Received: {text!r}"
        ) from error
    return make(**numbers)
