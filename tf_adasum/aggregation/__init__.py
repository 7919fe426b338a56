"""Aggregation combines the gradients of all replicas into one gradient per variable.

Read the modules in this order: `rules` (Gram matrix to coefficients), `buckets` and `sparse`
(variables to vectors), `groups` and `levels` (which replica combines which elements), `scheme` (the
user's settings), `radix_plans` and `reduction_planner` (how a bucket is exchanged),
`rule_application` (groups of variables and the rule's state), `fused` (buckets that are not
packed), and `tf_adasum.ops` (inner products and weighted sums of vectors). `row_weights` weights
the mean by rows, `partial_results` serves virtual replicas, and `orthogonality` serves a callback.

A *plan* describes how one bucket, or one sparse gradient, is combined. A large bucket is cut into
*pieces*, which are exchanged separately, but get the same coefficients.

Shape legend: S segments (variables), R replicas, n elements of a bucket, W elements of a shard.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation import buckets, rules, sparse
from tf_adasum.aggregation.buckets import Gradient
from tf_adasum.aggregation.levels import Level
from tf_adasum.aggregation.reduction_planner import (
    BucketPlan,
    LocalReductionPlanner,
    ReductionPlanner,
)
from tf_adasum.aggregation.rule_application import RuleApplication
from tf_adasum.aggregation.rules.checks import checked_coefficients
from tf_adasum.aggregation.scheme import Scheme
from tf_adasum.arguments import check

AnyPlan = BucketPlan | sparse.SparsePlan


def aggregate(
    gradients: Sequence[Sequence[Gradient]],
    planner: ReductionPlanner,
    bucket_bytes: int | None = None,
    application: RuleApplication | None = None,
    is_last_early: bool = False,
) -> list[Gradient]:
    """Combine the replicas' gradients: ``Σ_i c_i g_i`` with the rule's coefficients.

    Args:
        gradients: one list for each replica of this process (all replicas for
            `LocalReductionPlanner`, one for `CollectiveReductionPlanner`). A list holds dense
            tensors of known shape or `tf.IndexedSlices`, in the same order on every replica.
        planner: plans the exchange between replicas; its scheme contains the rule.
        bucket_bytes: size of a bucket. Defaults to the size in `buckets.assign`.
        application: the `RuleApplication` with the rule's state. Defaults to a `RuleApplication`
            with the state before the first step, which needs a rule of granularity ``"variable"``
            or ``"model"``. Gradients beyond its variables get their own coefficients.
        is_last_early: whether the last gradient is in the first bucket. Defaults to `False`.

    Returns:
        The list of combined gradients, in the shapes and dtypes of the replicas' gradients. A
        sparse gradient stays sparse.

    Raises:
        ValueError: if a gradient is not a floating-point tensor of known shape.
    """
    gradients = _dense_or_sparse_everywhere(gradients)
    application = application or RuleApplication.of_first_step(planner.scheme, len(gradients[0]))
    application.add_groups(len(gradients[0]))
    is_by_variable = application.groups_are_variables
    needs_full_gram = application.measures_orthogonality or not is_by_variable
    dense = buckets.assign(gradients[0], bucket_bytes, planner.scheme.spans_hosts, is_last_early)
    plans: list[AnyPlan] = [planner.plan(bucket, needs_full_gram) for bucket in dense]
    is_mean = planner.scheme.rule.is_mean and not needs_full_gram
    plans += sparse.plans(gradients, planner, is_mean)
    combined = list(gradients[0])
    # A group of variables can be in several plans, whose coefficients are computed together.
    for together in [[plan] for plan in plans] if is_by_variable else [plans] if plans else []:
        for index, gradient in combine(together, gradients, application):
            combined[index] = gradient
    return combined


def combine(
    plans: Sequence[AnyPlan], gradients: Sequence[Sequence[Gradient]], application: RuleApplication
) -> list[tuple[int, Gradient]]:
    """Combine the gradients of plans that have the same number of levels and the same rules.

    Returns:
        A list of ``(index, gradient)``, for all gradients of these plans.
    """
    pieces = [plan.split(gradients) for plan in plans]  # per plan: (vectors, segments)
    depth = len(plans[0].levels)
    for below in range(depth):
        levels = [plan.levels[below] for plan in plans]
        rule = levels[0].rule
        rows = [
            [level.scatter(*piece) for piece in own]
            for level, own in zip(levels, pieces, strict=True)
        ]
        grams = [
            _gram(level, own, rule.needs_gram or application.measures_orthogonality)
            for level, own in zip(levels, rows, strict=True)
        ]
        gram_SRR = tf.concat(grams, axis=0)
        if below < depth - 1:  # only the last level uses groups of variables and a state
            own_SR = rule.coefficients(gram_SRR)
            coefficients_SR = checked_coefficients(rule, own_SR, gram_SRR)
        else:
            indices = [index for plan in plans for index in plan.indices]
            coefficients_SR = application.coefficients(rule, gram_SRR, indices)
        counts = [len(plan.indices) for plan in plans]
        pieces = [
            [(level.combine(rows_RW, own_SR, s), s) for rows_RW, s in own]
            for level, own, own_SR in zip(
                levels, rows, tf.split(coefficients_SR, counts), strict=True
            )
        ]
    return [
        gradient
        for plan, own in zip(plans, pieces, strict=True)
        for gradient in plan.join([_gathered(plan, vector) for vector, _ in own])
    ]


def _gram(level: Level, rows: Sequence[tuple[tf.Tensor, Any]], is_needed: bool) -> tf.Tensor:
    """Return a plan's Gram matrices ``[S, R, R]``, or zeros if they are not needed.

    Each Gram matrix is summed over the pieces, and completed by `level.all_reduce_gram`.

    Args:
        level: the level of the plan.
        rows: for each piece, the rows that this member combines, and their segments.
        is_needed: whether the Gram matrices are needed.
    """
    if is_needed:
        return level.all_reduce_gram(tf.add_n([level.gram(*piece) for piece in rows]))
    rows_RW, segments = rows[0]
    replicas = rows_RW.shape[0]
    return tf.zeros([segments.shape[0] - 1, replicas, replicas], tf.float64)


def _gathered(plan: AnyPlan, vector: tf.Tensor) -> tf.Tensor:
    for level in reversed(plan.levels):
        vector = level.gather(vector)
    return vector


def _dense_or_sparse_everywhere(gradients: Sequence[Sequence[Any]]) -> list[list[Gradient]]:
    """Return the gradients. One that is dense on a local replica becomes dense on all of them."""
    are_sparse = [
        all(isinstance(gradient, tf.IndexedSlices) for gradient in of_replicas)
        for of_replicas in zip(*gradients, strict=True)
    ]
    return [
        [
            _slices_of_tensors(gradient) if is_sparse else tf.convert_to_tensor(gradient)
            for gradient, is_sparse in zip(own, are_sparse, strict=True)
        ]
        for own in gradients
    ]


def _slices_of_tensors(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    shape = slices.dense_shape
    return tf.IndexedSlices(
        tf.convert_to_tensor(slices.values),
        tf.convert_to_tensor(slices.indices),
        None if shape is None else tf.convert_to_tensor(shape, dtype_hint=tf.int64),
    )


def adasum(values: Iterable[Any]) -> Any:
    """Combine tensors, or equal structures of tensors, with Adasum, without communication.

    For two tensors it computes ``(1 - a·b / (2‖a‖²)) a + (1 - a·b / (2‖b‖²)) b``. More tensors are
    combined in a tree of neighbours, see `rules.Adasum`. Use it in custom loops, or to study saved
    gradients. It works eagerly, in a `tf.function`, and in code compiled by XLA.

    Args:
        values: list of N >= 1 tensors with the same shape and floating-point dtype. The elements
            may also be structures (dicts, lists, tuples) of such tensors, or `tf.IndexedSlices`.

    Returns:
        One tensor or structure like the elements of `values`. A tensor is sparse in the result if
        it is sparse in all elements.

    Raises:
        ValueError: if `values` is not a list or is empty, or if structures, shapes or dtypes
            differ.

    Example:
        >>> orthogonal = [tf.constant([1.0, 0.0]), tf.constant([0.0, 2.0])]
        >>> tf_adasum.adasum(orthogonal).numpy()  # the sum
        array([1., 2.], dtype=float32)
        >>> identical = [tf.constant([3.0, 4.0])] * 5
        >>> tf_adasum.adasum(identical).numpy()  # the mean
        array([3., 4.], dtype=float32)

    Reference:
        Maleki et al., MLSys 2021 (arXiv 2006.02924).
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, Mapping)
    check("values", values, is_list, "must be a list of tensors or of structures of tensors")
    values = list(values)
    check("values", values, len(values) > 0, "must contain at least one tensor")
    for other in values[1:]:
        try:
            tf.nest.assert_same_structure(values[0], other)
        except TypeError as error:
            raise ValueError(f"All `values` must have the same structure. {error}") from error
    leaves = [tf.nest.flatten(own) for own in values]
    if any(leaf is None for own in leaves for leaf in own):
        raise ValueError("`values` must not contain None: leave out variables without gradients.")
    replicas = _dense_or_sparse_everywhere(leaves)
    for replica, own in enumerate(replicas):
        for first, leaf in zip(replicas[0], own, strict=True):
            if leaf.dtype != first.dtype or not leaf.shape.is_compatible_with(first.shape):
                raise ValueError(
                    "All `values` must have the same shapes and dtypes. Received: "
                    f"{first.dtype.name}{list(first.shape)} in values[0], "
                    f"{leaf.dtype.name}{list(leaf.shape)} in values[{replica}]"
                )
    combined = aggregate(replicas, LocalReductionPlanner(Scheme(rules.Adasum(), len(replicas))))
    return tf.nest.pack_sequence_as(values[0], combined)
