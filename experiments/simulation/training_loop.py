"""A training from its beginning, in parts, with a measurement after each part."""

import itertools

import numpy as np
import tensorflow as tf


def train(
    training, split, evaluated, *, steps, rates, seed, evaluations=20, limit=np.inf, look=None
):
    """Train from the beginning.

    Args:
        training: has `replicas`, `batch`, ``initial(seed)``, which returns a state,
            ``steps(state, x, y, order, rates, begin, end)``, which returns the next one, and
            ``measure(state, x, y)``, which returns a dict with "loss" and other scalars.
        split: training inputs and labels, NumPy arrays.
        evaluated: those of the split on which the training is measured.
        steps: T.
        rates: ``[T]``.
        seed: of initial weights and of the data's order.
        evaluations: how often it is measured, in equal distances.
        limit: a loss that is not below it ends the training, which has diverged.
        look: called with the number of steps and the state, before each part of the steps.

    Returns:
        dict with lists, "step" and what is measured there, None for the loss of a training that
        has diverged; and the state at the end.
    """
    x, y = on_device(split)
    held = on_device(evaluated)
    order = tf.constant(orders(len(split[1]), steps, training.replicas * training.batch, seed))
    rates = tf.constant(rates, tf.float32)
    state = training.initial(seed)
    stops = np.unique(np.linspace(0, steps, min(evaluations, steps) + 1).round().astype(int))
    curves = {}
    for begin, end in itertools.pairwise(stops):
        if look is not None:
            look(begin, state)
        between = (tf.constant(stop, tf.int32) for stop in (begin, end))
        state = training.steps(state, x, y, order, rates, *between)
        measured = {name: float(own) for name, own in training.measure(state, *held).items()}
        has_diverged = not measured["loss"] < limit
        for name, value in {"step": int(end), **measured}.items():
            is_kept = not (has_diverged and name == "loss")
            curves.setdefault(name, []).append(round(value, 4) if is_kept else None)
        if has_diverged:
            break
    return curves, state


def orders(rows, steps, global_batch, seed):
    """Return the rows of each step, int32 ``[T, N B]``: epochs are shuffled, the rest is left."""
    random = np.random.default_rng([seed, 1])
    per_epoch = rows // global_batch
    if not per_epoch:
        raise ValueError(f"A global batch of {global_batch} is more than the {rows} rows there are")
    epochs = [
        random.permutation(rows)[: per_epoch * global_batch] for _ in range(-(-steps // per_epoch))
    ]
    return np.concatenate(epochs).reshape([-1, global_batch])[:steps].astype(np.int32)


_TENSORS: dict = {}


def on_device(split):
    """Return the tensors of a split's arrays; made once for each."""
    key = tuple(map(id, split))
    if key not in _TENSORS:
        _TENSORS[key] = (split, tuple(map(tf.constant, split)))  # with the arrays, which own the id
    return _TENSORS[key][1]
