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

If the replicas are on several hosts, with L on each host, the messages and the bytes that leave a
host cost more: α_h for each message, and β_h for each byte, where the L replicas share the link of
their host. Of the R_l - 1 messages and shards of a replica on level l, those to the
``R_l - max(1, min(R_l, L / P_(l-1)))`` members on other hosts count.

The sum of ``n_l (R_l - 1) / R_l`` over the levels is the same for every plan. So on one host, plans
differ only in the number of messages, the Gram matrices and the arithmetic. ``[N]`` has the fewest
collectives. On several hosts, the bytes differ too: with ``[N]``, ``2 n L (N - L) / N`` bytes leave
each host, and with ``[L, N / L]`` it is L times less.
For large N, its ``n N / 2`` products and ``S N² / 2`` numbers outweigh this advantage. The
resulting plans for N up to 1024 are in docs/cost_model.md.

``python benchmarks/exchange.py --fit`` (``--fit ucx`` over UCX) fits α, β and γ, and prints the
variable to set in the environment of every worker.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

from tf_adasum.aggregation import buckets, groups, radix_plans

VARIABLE = "TF_ADASUM_COST_MODEL"

# The shipped constants choose only above this many replicas, because they underestimate the time of
# plans with several levels. On 4 processes we measured that [2, 2] takes 1.08 to 1.28 times as long
# as [4]; the constants predict 1.02 to 1.15. For 8 replicas, the constants predict that several
# levels take less time, but by less than this error.
MOST_ON_ONE_LEVEL = 16


@dataclasses.dataclass(frozen=True)
class CostModel:
    """The constants of the cost model, in seconds.

    Args:
        alpha: seconds for a message.
        beta: seconds to send a byte.
        gamma: seconds for one multiplication and addition, per byte of gradients.
        alpha_host: seconds that a message takes in addition if it leaves the host. Defaults to
            50 µs.
        beta_host: seconds to send a byte over the link of a host, which the replicas of the host
            share. Defaults to 8e-10, which is 10 Gbit/s.
    """

    alpha: float
    beta: float
    gamma: float
    alpha_host: float = 5e-5
    beta_host: float = 8e-10

    def seconds(
        self,
        plan: Sequence[int],
        size: float,
        segments: int,
        replicas_per_host: int | None = None,
    ) -> float:
        """Return the seconds that a bucket takes.

        Args:
            plan: the radices of the levels, in order.
            size: n, the size of the bucket in bytes.
            segments: S, the number of segments of the bucket.
            replicas_per_host: L, the number of replicas on each host. Defaults to `None`: all
                replicas are on one host.
        """
        messages, sent, products = amounts(plan, size, segments)
        seconds = self.alpha * messages + self.beta * sent + self.gamma * products
        if replicas_per_host is None:
            return seconds
        messages, sent = amounts_between_hosts(plan, size, segments, replicas_per_host)
        return seconds + self.alpha_host * messages + self.beta_host * sent

    def gather_seconds(
        self, replicas: int, size: float, replicas_per_host: int | None = None
    ) -> float:
        """Return the seconds of a bucket that every replica gathers from all N and combines.

        Args:
            replicas: N.
            size: n, the size of the bucket in bytes.
            replicas_per_host: L, as for `seconds`.
        """
        products = replicas * size * ((replicas + 1) / 2 + 1)
        sent = (replicas - 1) * size
        seconds = self.alpha * replicas + self.beta * sent + self.gamma * products
        if replicas_per_host is None:
            return seconds
        elsewhere = replicas - replicas_per_host
        return seconds + elsewhere * (self.alpha_host + self.beta_host * replicas_per_host * size)

    def ring_seconds(
        self, replicas: int, size: float, replicas_per_host: int | None = None
    ) -> float:
        """Return the seconds of a mean of a bucket by a ring all-reduce, for comparison.

        Each replica sends to the next replica, so one replica of each host sends to another host.

        Args:
            replicas: N.
            size: n, the size of the bucket in bytes.
            replicas_per_host: L, as for `seconds`.
        """
        messages = 2 * (replicas - 1)
        sent = messages * size / replicas
        seconds = self.alpha * messages + (self.beta + self.gamma / 2) * sent
        if replicas_per_host is None or replicas_per_host >= replicas:
            return seconds
        return seconds + self.alpha_host * messages + self.beta_host * sent

    def best(
        self, replicas: int, size: float, segments: int, replicas_per_host: int | None = None
    ) -> tuple[int, ...]:
        """Return the fastest of the plans that respect Adasum's tree."""
        plans = radix_plans.tree_plans(replicas)
        return min(plans, key=lambda plan: self.seconds(plan, size, segments, replicas_per_host))


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
        if members * gram <= groups.GATHERED_SUM_BYTES:
            messages += members
            sent += (members - 1) * gram
        else:
            messages += 1 + 2 * (members - 1)
            sent += 2 * (members - 1) * gram / members
        products += own * ((radix + 1) / 2 + 1)
        own /= radix
    return messages, sent, products


def amounts_between_hosts(
    plan: Sequence[int], size: float, segments: int, replicas_per_host: int
) -> tuple[float, float]:
    """Return the amounts that α_h and β_h are multiplied by.

    Args:
        plan: the radices of the levels, in order.
        size: n, the size of the bucket in bytes.
        segments: S, the number of segments of the bucket.
        replicas_per_host: L. The replicas of a host have consecutive numbers.

    Returns:
        The number of messages that a replica sends to other hosts, and the number of bytes that
        leave a host.
    """
    pieces = max(1, round(size / buckets.PIECE_BYTES))
    messages, sent = 0.0, 0.0
    members, own = 1, float(size)
    for radix in plan:
        on_own_host = max(1, min(radix, replicas_per_host // members))
        members *= radix
        messages += 2 * pieces * (radix - on_own_host)
        sent += replicas_per_host * 2 * (radix - on_own_host) * own / radix
        gram = 8 * segments * radix * (radix + 1) // 2
        elsewhere = max(0, members - replicas_per_host)
        if members * gram <= groups.GATHERED_SUM_BYTES:
            messages += elsewhere
            sent += replicas_per_host * elsewhere * gram
        elif elsewhere:  # one replica of each host sends to the next host of the ring
            messages += 2 * (members - 1)
            sent += 2 * (members - 1) * gram / members
        own /= radix
    return messages, sent


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
    replicas_per_host: int | None = None,
) -> tuple[int, ...]:
    """Return the plan of a bucket if the user has not chosen a plan.

    Args:
        replicas: N, the number of replicas.
        size: n, the size of the bucket in bytes.
        segments: S, the number of segments of the bucket.
        costs: a cost model measured on the user's cluster, which chooses for every N. Defaults to
            `None`: the plan is ``[N]`` up to 16 replicas, unless several replicas share each of
            several hosts. Otherwise, the shipped constants choose.
        default_costs: the shipped constants. Defaults to the constants of TensorFlow's collectives.
        replicas_per_host: L, the number of replicas on each host. Defaults to `None`: all replicas
            are on one host, or the hosts have different numbers of replicas.

    Example:
        >>> default_plan(16, 2**20, 10)
        (16,)
        >>> default_plan(64, 2**20, 10)
        (2, 4, 8)
        >>> default_plan(16, 2**20, 10, CostModel(alpha=0, beta=0, gamma=1))
        (4, 4)
        >>> default_plan(16, 2**20, 10, replicas_per_host=4)
        (4, 4)
    """
    if (
        costs is None
        and replicas <= MOST_ON_ONE_LEVEL
        and not share_hosts(replicas, replicas_per_host)
    ):
        return (replicas,)
    return (costs or default_costs).best(replicas, size, segments, replicas_per_host)


def share_hosts(replicas: int, replicas_per_host: int | None) -> bool:
    """Return whether there are several hosts, with several replicas on each host."""
    return replicas_per_host is not None and 1 < replicas_per_host < replicas


def measured() -> CostModel | None:
    """Return the cost model in the environment variable ``TF_ADASUM_COST_MODEL``.

    The variable gives α, β and γ, or α_h and β_h, or all five. Defaults are those of `UCX`.

    Returns:
        A `CostModel`, or None if the variable is not set.

    Raises:
        ValueError: if the variable is not of the form ``alpha=1e-4,beta=1e-9,gamma=1e-10``, or
            ``alpha_host=1e-4,beta_host=8e-9``, or both with a comma between them.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        pairs = dict(part.split("=") for part in text.split(","))
        numbers = {name.strip(): float(number) for name, number in pairs.items()}
        is_of_hosts = numbers.keys() == {"alpha_host", "beta_host"}
        model = dataclasses.replace(UCX, **numbers) if is_of_hosts else CostModel(**numbers)
        if not all(0 <= number < math.inf for number in dataclasses.astuple(model)):
            raise ValueError("a number is negative or not finite")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The environment variable {VARIABLE} must be like 'alpha=1e-4,beta=1e-9,gamma=1e-10' "
            f"or 'alpha_host=1e-4,beta_host=8e-9', in seconds: {error}. Received: {text!r}"
        ) from error
    return model
