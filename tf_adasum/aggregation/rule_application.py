"""Apply a rule in one reduction: the inputs other than gradients, and the results.

The inputs are the groups of variables that share coefficients, and the rule's state. The results
are the new state and, if a callback measures it, the orthogonality. A `RuleApplication` is used for
one reduction and holds tensors. `tf_adasum.replicas.aggregation_state` keeps them in variables.

Shape legend: V variables, S segments (the variables in one call of `coefficients`), P groups,
R replicas.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_adasum.aggregation import orthogonality
from tf_adasum.aggregation.rules import AggregationRule, granularity
from tf_adasum.aggregation.rules.checks import checked_coefficients, checked_state
from tf_adasum.aggregation.scheme import Scheme
from tf_adasum.errors import see


class RuleApplication:
    """Turns Gram matrices into coefficients, for groups of variables and with the rule's state.

    Args:
        groups: ints ``[V]``: for each gradient, the number of its group.
        state: the rule's state: dict of tensors ``[P, ...]``, which `coefficients` replaces.
            Defaults to no state.
        measures_orthogonality: whether `measures` will be called. Defaults to `False`.
        local_reduction_size: number of neighbours whose mean counts as one gradient, for
            `measures`. Defaults to `1`.
    """

    def __init__(
        self,
        groups: npt.ArrayLike,
        state: Mapping[str, tf.Tensor] | None = None,
        measures_orthogonality: bool = False,
        local_reduction_size: int = 1,
    ):
        self.groups = np.asarray(groups)
        self._variables = len(self.groups)
        self.state = dict(state or {})
        self.measures_orthogonality = measures_orthogonality
        self._local_reduction_size = local_reduction_size
        self._measures: dict[int, tf.Tensor] = {}

    @classmethod
    def of_first_step(cls, scheme: Scheme, variables: int) -> "RuleApplication":
        """Return the `RuleApplication` of a rule's first step, for variables without known paths.

        Raises:
            ValueError: if the granularity of the rule needs the variables' paths.
        """
        rule = scheme.rule
        if not isinstance(rule.granularity, str):
            raise ValueError(
                f"The granularity of {rule!r} needs the variables' paths. Use a Keras optimizer, "
                f"or strategy.gradient_reduction_of(variables). {see('TFA-306')}"
            )
        groups = granularity.groups(rule.granularity, [""] * variables)
        state = scheme.single_level_rule.initial_state(max(groups, default=-1) + 1, scheme.replicas)
        tensors = {name: tf.convert_to_tensor(value) for name, value in state.items()}
        return cls(groups, tensors, local_reduction_size=scheme.local_reduction_size)

    def add_groups(self, gradients: int) -> None:
        """Add gradients without a variable, each with its own group, until there are so many."""
        first = max(self.groups, default=-1) + 1
        more = range(first, first + gradients - len(self.groups))
        self.groups = np.append(self.groups, np.array(more, self.groups.dtype))

    @property
    def groups_are_variables(self) -> bool:
        """Whether no two variables share coefficients."""
        return len(set(self.groups)) == len(self.groups)

    def coefficients(
        self, rule: AggregationRule, gram_SRR: tf.Tensor, indices: Sequence[int]
    ) -> tf.Tensor:
        """Return the coefficients ``[S, R]`` of the gradients at `indices`; store the new state.

        Args:
            rule: the `AggregationRule`.
            gram_SRR: the Gram matrices of these gradients.
            indices: for each segment, the index of its gradient.

        Raises:
            ValueError: if a rule of the user returns a wrong shape, or numbers that are not
                floating-point.
            tf.errors.InvalidArgumentError: when the step runs, if a rule of the user returns
                non-finite coefficients for a finite Gram matrix.
        """
        if self.measures_orthogonality:
            measures_3S = orthogonality.measures(gram_SRR, self._local_reduction_size)
            self._measures |= dict(zip(indices, tf.unstack(measures_3S, axis=1), strict=True))
        groups, position = _numbered(self.groups[list(indices)])
        is_alone = len(groups) == len(position)
        gram_PRR = (
            gram_SRR if is_alone else tf.math.unsorted_segment_sum(gram_SRR, position, len(groups))
        )
        is_finite_P = tf.reduce_all(tf.math.is_finite(gram_PRR), axis=[1, 2])

        state = {name: tf.gather(value, groups) for name, value in self.state.items()}
        c_PR, new_state = rule.coefficients_and_state(gram_PRR, state)
        c_PR = checked_coefficients(rule, c_PR, gram_PRR)
        for name, value in checked_state(rule, state, new_state).items():
            keep = tf.reshape(is_finite_P, [-1] + [1] * (value.shape.rank - 1))
            value = tf.where(keep, value, state[name])
            self.state[name] = tf.tensor_scatter_nd_update(self.state[name], groups[:, None], value)
        c_PR = tf.where(is_finite_P[:, None], c_PR, tf.constant(np.nan, tf.float64))
        return c_PR if is_alone else tf.gather(c_PR, position)

    def measures(self) -> tf.Tensor:
        """Return `orthogonality.measures`, float64 ``[3, V]``: zeros without a gradient."""
        nothing = tf.zeros([3], tf.float64)
        columns = [self._measures.get(index, nothing) for index in range(self._variables)]
        return tf.stack(columns, axis=1)


def _numbered(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different groups in order of appearance, and each segment's index in them."""
    found: dict[int, int] = {}
    position = [found.setdefault(group, len(found)) for group in groups.tolist()]
    return np.array(list(found)), np.array(position)
