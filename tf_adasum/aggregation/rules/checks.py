"""Checks of the values that a rule returns, before they are used.

Shape legend: P segments, or groups of them, R replicas.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.aggregation.rules.base import AggregationRule


def is_built_in(rule: AggregationRule) -> bool:
    """Return whether a rule belongs to this package, so that its results need no check."""
    return type(rule).__module__.startswith("tf_adasum.")


def checked_coefficients(rule: AggregationRule, coefficients: Any, gram: tf.Tensor) -> tf.Tensor:
    """Return the coefficients as float64 ``[P, R]``; check them if the user wrote the rule.

    Args:
        rule: the rule.
        coefficients: the coefficients that the rule returned.
        gram: float64 ``[P, R, R]``, the argument of the rule.

    Raises:
        ValueError: if the shape is wrong, or the numbers are not floating-point.
        tf.errors.InvalidArgumentError: when the step runs, if the Gram matrix is finite, but the
            coefficients are not.
    """
    if is_built_in(rule):
        return coefficients
    try:
        c_PR = tf.convert_to_tensor(coefficients, dtype_hint=tf.float64)
        if not c_PR.dtype.is_floating:
            raise ValueError(f"dtype {c_PR.dtype.name}")
        if not c_PR.shape.is_compatible_with(gram.shape[:2]):
            raise ValueError(f"shape {c_PR.shape}")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The rule {rule!r} must return floating-point coefficients of the shape [S, R] = "
            f"{gram.shape[:2]}, one for each segment and replica. Received: {error}"
        ) from error
    c_PR = tf.ensure_shape(tf.cast(c_PR, tf.float64), gram.shape[:2])
    is_finite_P = tf.reduce_all(tf.math.is_finite(gram), axis=[1, 2])
    is_good_P = tf.reduce_all(tf.math.is_finite(c_PR), axis=1) | ~is_finite_P
    # tf.debugging.Assert is not used, because it has branches, which are functions. TensorFlow
    # creates its devices with the first function, and they cannot be configured afterwards.
    check = tf.raw_ops.Assert(
        condition=tf.reduce_all(is_good_P),
        data=[
            tf.constant(f"The rule {rule!r} returned coefficients that are not finite:"),
            c_PR,
            tf.constant("for the Gram matrices"),
            gram,
        ],
        summarize=50,
    )
    with tf.control_dependencies([check] if check is not None else []):  # None in eager code
        return tf.identity(c_PR)


def checked_initial_state(
    rule: AggregationRule, segments: int, replicas: int
) -> dict[str, np.ndarray]:
    """Return a rule's initial state, after checks.

    Raises:
        ValueError: if the state is not a dict of numeric NumPy arrays ``[S, ...]``.
    """
    state = rule.initial_state(segments, replicas)
    expected = f"initial_state of the rule {rule!r} must return a dict of NumPy arrays [S, ...]"
    if not isinstance(state, dict):
        raise ValueError(f"{expected}. Received: {state!r}")
    for name, array in state.items():
        is_name = isinstance(name, str) and name.isidentifier()
        is_array = isinstance(array, np.ndarray) and array.dtype.kind in "biuf"
        if not (is_name and is_array and array.shape[:1] == (segments,)):
            raise ValueError(
                f"{expected}, here with S = {segments}; the names must be Python identifiers. "
                f"Received: {name!r}: {type(array).__name__} of shape {np.shape(array)}"
            )
    return state


def checked_state(
    rule: AggregationRule, state: Mapping[str, tf.Tensor], new_state: Any
) -> Mapping[str, tf.Tensor]:
    """Return the new state in the dtypes of the old state, after checks.

    Raises:
        ValueError: if names or shapes differ from the old state, for a rule that the user wrote.
    """
    if is_built_in(rule):
        return new_state
    if not isinstance(new_state, dict) or new_state.keys() != state.keys():
        received = list(new_state) if isinstance(new_state, dict) else new_state
        raise ValueError(
            f"The rule {rule!r} must return a state with the names {list(state)}. "
            f"Received: {received!r}"
        )
    checked = {}
    for name, old in state.items():
        value = tf.cast(tf.convert_to_tensor(new_state[name]), old.dtype)
        if not value.shape.is_compatible_with(old.shape):
            raise ValueError(
                f"The rule {rule!r} must return the state {name!r} in the shape {old.shape}. "
                f"Received: shape {value.shape}"
            )
        checked[name] = tf.ensure_shape(value, old.shape)
    return checked
