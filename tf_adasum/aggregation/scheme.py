"""The scheme: the user's settings for combining gradients, after checks."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation import radix_plans, rules
from tf_adasum.aggregation.rules import checks, granularity
from tf_adasum.aggregation.rules.nested import nested
from tf_adasum.arguments import check

LONGEST_SETTING = 1000  # characters

WIRE_DTYPES = {"bfloat16": tf.bfloat16, "float16": tf.float16}


@dataclasses.dataclass(frozen=True)
class Scheme:
    """An aggregation rule, and the settings of the exchange.

    Attributes:
        rule: the `AggregationRule`.
        replicas: N, the number of replicas.
        local_reduction_size: L, the number of neighbours that are averaged before the rule is
            applied. Defaults to `1`.
        radix_plan: the radices, a tuple whose product is N / L. Defaults to `None`, see `plan`.
        wire_dtype: `tf.DType` in which gradients are sent. Defaults to the dtype of the gradients.
        replicas_per_host: the number of replicas on each host, if several replicas share each of
            several hosts. Defaults to `1`.
        spans_hosts: whether the replicas are on several hosts. Defaults to `False`.
    """

    rule: rules.AggregationRule
    replicas: int
    local_reduction_size: int = 1
    radix_plan: tuple[int, ...] | None = None
    wire_dtype: tf.DType | None = None
    replicas_per_host: int = 1
    spans_hosts: bool = False

    @classmethod
    def from_arguments(
        cls, rule: rules.AggregationRule, replicas: int, **arguments: Any
    ) -> "Scheme":
        """Return the scheme for a strategy's arguments.

        Args:
            rule: the `AggregationRule`.
            replicas: N, the number of replicas.
            **arguments: the other attributes. `radix_plan` and `wire_dtype` are the strategy's
                arguments, and `replicas_per_host` is None if it is not known, or hosts have
                different numbers.

        Raises:
            ValueError: if an argument is wrong, or the rule does not support it.
        """
        given = cls(rule, replicas, **arguments)
        across, wire_dtype, per_host = given.num_combined, given.wire_dtype, given.replicas_per_host
        granularity.validated_granularity(rule.granularity)
        radix_plan = radix_plans.validated_radix_plan(given.radix_plan, across)
        if radix_plan and len(radix_plan) > 1 and not rule.works_in_levels:
            raise ValueError(
                f"`radix_plan` must be None or [{across}] with {rule!r}: the rule needs the inner "
                f"products of all gradients at once. Received: radix_plan={list(radix_plan)}"
            )
        is_known = wire_dtype is None or _name(wire_dtype) in WIRE_DTYPES
        check("wire_dtype", wire_dtype, is_known, "must be 'bfloat16', 'float16' or None")
        _probe_shapes(rule, across)
        return dataclasses.replace(
            given,
            radix_plan=radix_plan,
            wire_dtype=WIRE_DTYPES.get(_name(wire_dtype) or ""),
            replicas_per_host=per_host if per_host and per_host < replicas else 1,
        )

    @property
    def single_level_rule(self) -> rules.AggregationRule:
        """One rule that computes all levels of the plan from the Gram matrix of all replicas."""
        return nested(self.levels(self.radix_plan or (self.num_combined,)))

    @property
    def num_combined(self) -> int:
        """N / L, the number of gradients, or of averages of gradients, that the rule combines."""
        return self.replicas // self.local_reduction_size

    def plan(self, size: int, segments: int) -> tuple[int, ...]:
        """Return the radix plan of a bucket.

        Args:
            size: the size of the bucket in bytes.
            segments: the number of segments of the bucket.
        """
        if self.radix_plan:
            return self.radix_plan
        per_host = self.replicas_per_host if self.local_reduction_size == 1 else 1
        # Sum and mean have the same result with any plan.
        is_linear = self.rule.is_mean or self.rule.computes_as(rules.Sum)
        follows_hosts = per_host > 1 and is_linear
        if self.rule.works_in_levels and (self.rule.is_tree_of_pairs or follows_hosts):
            segments = segments if self.rule.needs_gram else 0
            return radix_plans.default_plan(self.num_combined, size, segments, per_host)
        return (self.num_combined,)

    def levels(self, radix_plan: Sequence[int]) -> list[tuple[int, rules.AggregationRule]]:
        """Return radix and rule per level. If L > 1, the first level is the mean of L replicas."""
        averaged = self.local_reduction_size
        first = [(averaged, rules.Mean())] if averaged > 1 else []
        return [*first, *((radix, self.rule) for radix in radix_plan)]

    def summary(self) -> str:
        """Return the rule and the plan in one line, which worker 0 logs at the start."""
        plan = self.plan(0, 0)
        varies = not self.radix_plan and len(plan) > 1 + (self.replicas_per_host > 1)
        words = [
            f"rule {' '.join(_short(repr(self.rule)).split())}",
            f"radix plan {'with the fewest messages' if varies else list(plan)}",
            f"after the mean of {self.local_reduction_size} on each host"
            if self.local_reduction_size > 1
            else "",
            f"{self.replicas_per_host} replicas on each host" if self.replicas_per_host > 1 else "",
            f"sent as {_name(self.wire_dtype)}" if self.wire_dtype else "",
        ]
        return ", ".join(filter(None, words))

    def probe_values(self) -> None:
        """Test the rule on orthogonal gradients of length 1.

        Raises:
            ValueError: if the coefficients are not finite.
        """
        if checks.is_built_in(self.rule):
            return
        with tf.device("CPU:0"):
            gram = tf.eye(self.num_combined, batch_shape=[self.num_combined + 1], dtype=tf.float64)
            own = self.rule.coefficients(gram)
            try:
                checks.checked_coefficients(self.rule, own, gram)
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(error.message) from error

    def settings_that_must_match(self) -> dict[str, Any]:
        """Return the settings that must match on all workers, which the rendezvous compares."""
        return {
            "rule": _short(repr(self.rule)),
            "radix_plan": self.radix_plan and list(self.radix_plan),
            "local_reduction (replicas averaged)": self.local_reduction_size,
            "wire_dtype": _name(self.wire_dtype),
            "replicas on each host": self.replicas_per_host,
            "on several hosts": self.spans_hosts,
        }


def _short(text: str) -> str:
    """Return the text. A long text is cut, and its hash is added for the comparison of workers."""
    if len(text) <= LONGEST_SETTING:
        return text
    return f"{text[:LONGEST_SETTING]}… sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def _probe_shapes(rule: rules.AggregationRule, replicas: int) -> None:
    """Test a rule on Gram matrices without values, so that TensorFlow runs no operation."""
    if checks.is_built_in(rule):
        return
    with tf.Graph().as_default(), tf.device("CPU:0"):
        segments = replicas + 1  # not R, so that a rule that mixes up S and R fails
        gram = tf.compat.v1.placeholder(tf.float64, [segments, replicas, replicas])
        checks.checked_coefficients(rule, rule.coefficients(gram), gram)
        arrays = checks.checked_initial_state(rule, segments, replicas)
        if arrays:
            state = {name: tf.constant(array) for name, array in arrays.items()}
            coefficients, new_state = rule.coefficients_and_state(gram, state)
            checks.checked_coefficients(rule, coefficients, gram)
            checks.checked_state(rule, state, new_state)


def _name(dtype: Any) -> str | None:
    return dtype.name if isinstance(dtype, tf.DType) else dtype if isinstance(dtype, str) else None
