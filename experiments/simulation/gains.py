"""AdaScale on N replicas in one process, with the package's own estimates of the gain.

The step of `tf_adasum.optimizers.AdaScale` around SGD with momentum:

    r_t = gain of the replicas' gradients       η_t = r_t · lr(⌊τ_t⌋)       τ_{t+1} = τ_t + r_t

Shape legend: N replicas, n weights, T steps at S = 1.
"""

import functools
import typing

import numpy as np
import tensorflow as tf

from experiments.simulation.training import training
from experiments.simulation.training_loop import on_device, orders
from tf_adasum.optimizers import gain


class GainState(typing.NamedTuple):
    """The state of a training between two steps; its shapes do not depend on S."""

    weights: tf.Tensor
    slots: tf.Tensor
    variance: tf.Tensor
    squared_norm: tf.Tensor
    weight: tf.Tensor
    gain: tf.Tensor
    scale_invariant_steps: tf.Tensor
    iterations: tf.Tensor


class GainTraining:
    """AdaScale's steps on gradients of N replicas.

    Args:
        model: what `experiments.models` has.
        replicas: N, how many gradients are measured.
        batch: rows of each replica.
        scale: S, how many small batches are in a step. Defaults to N.
        smoothing: θ of the moving averages. Defaults to that of the package, max(1 - S/1000, 0).
    """

    def __init__(self, model, replicas, batch, scale=None, smoothing=None):
        self.inner = training(model, "momentum", "mean", replicas, batch)
        self.replicas, self.batch, self.scale = replicas, batch, float(scale or replicas)
        self.smoothing = max(1 - self.scale / 1000, 0) if smoothing is None else smoothing
        state = tf.nest.map_structure(tf.TensorSpec.from_tensor, self.initial(0))
        rows = [tf.TensorSpec([None, *own.shape], own.dtype) for own in model.example]
        order = tf.TensorSpec([None, replicas * batch], tf.int32)
        rates = tf.TensorSpec([None], tf.float32)
        number = tf.TensorSpec([], tf.float64)
        self.steps = tf.function(self._steps, [state, *rows, order, rates, number])

    def initial(self, seed):
        """Return the state before the first step."""
        weights, slots, _ = self.inner.initial(seed)
        numbers = (tf.constant(own, tf.float64) for own in (0, 0, 0, 1, 0))
        return GainState(weights, slots, *numbers, tf.constant(0))

    def _steps(self, state, x, y, order, rates, until):
        """Take steps until τ is `until` or above.

        Args:
            state: as returned by `initial`, or by this, of any S.
            x: all inputs of the training split.
            y: their labels.
            order: ``[iterations, N B]``, the rows of each step; begins anew at its end.
            rates: ``[T]``, lr at S = 1.
            until: float64 scalar.
        """
        smoothing = tf.constant(self.smoothing, tf.float64)
        last = tf.size(rates) - 1

        def step(weights, slots, variance, squared_norm, weight, r, steps, t):
            rows = order[t % tf.shape(order)[0]]
            rows = tf.ensure_shape(rows, [self.replicas * self.batch])
            g_Nn = self.inner.gradients(weights, tf.gather(x, rows), tf.gather(y, rows))
            g_n = tf.reduce_mean(g_Nn, axis=0)
            if self.replicas > 1:
                mean_square = tf.reduce_sum(tf.square(g_Nn)) / self.replicas
                square_of_mean = tf.reduce_sum(tf.square(g_n))
                norms = (tf.cast(own, tf.float64) for own in (mean_square, square_of_mean))
                sample = gain.estimates(*norms, self.replicas, self.scale)
                weight, taken = gain.averaging(weight, smoothing, True)
                variance += taken * (sample[0] - variance)
                squared_norm += taken * (sample[1] - squared_norm)
                r = gain.gain_ratio(variance, squared_norm, self.scale)
            small = tf.gather(rates, tf.minimum(tf.cast(tf.floor(steps), tf.int32), last))
            rate = tf.cast(r, tf.float32) * small
            number = tf.cast(t + 1, tf.float32)
            change, slots = self.inner.update.step(g_n[None], weights, slots, rate, number)
            return weights + change[0], slots, variance, squared_norm, weight, r, steps + r, t + 1

        def goes_on(*state):
            return GainState(*state).scale_invariant_steps < until

        return GainState(*tf.while_loop(goes_on, step, list(state)))


def train(trainings, split, evaluated, *, rates, seed, evaluations=40):
    """Train from the beginning until τ is T.

    Args:
        trainings: pairs of a share of T and the `GainTraining` from then on, the first at 0.
        split: training inputs and labels, NumPy arrays.
        evaluated: those of the split on which the training is measured at the end.
        rates: ``[T]``, lr at S = 1.
        seed: of initial weights and of the data's order.
        evaluations: how often the gain is noted, in equal distances of τ.

    Returns:
        dict: "accuracy", "training loss" (None where it diverged), "iterations", and the lists
        "steps" (τ) and "gains".
    """
    x, y = on_device(split)
    total = len(rates)
    rates = tf.constant(rates, tf.float32)
    state = trainings[0][1].initial(seed)
    noted = {"steps": [], "gains": []}
    begins = [share * total for share, _ in trainings]
    stops = {*begins[1:], *np.linspace(0, total, evaluations + 1)[1:]}
    current, order = None, None
    for stop in sorted(stops):
        own = trainings[np.searchsorted(begins, stop, side="left") - 1][1]
        if own is not current:
            size = own.replicas * own.batch
            order = tf.constant(orders(len(split[1]), total, size, seed))
            current = own
        state = own.steps(state, x, y, order, rates, tf.constant(stop, tf.float64))
        noted["steps"].append(round(float(state.scale_invariant_steps), 1))
        noted["gains"].append(round(float(state.gain), 3))
        if not np.isfinite(noted["steps"][-1]):
            break
    return measured(current.inner, state.weights, split, evaluated) | {
        "iterations": int(state.iterations),
        **noted,
    }


def measured(inner, weights, split, evaluated):
    """Return accuracy on one split, and loss on the training split."""
    _, accuracy = inner.evaluate(weights, *on_device(evaluated))
    loss, _ = inner.evaluate(weights, *on_device(split))
    has_diverged = not np.isfinite(float(loss))
    return {
        "accuracy": None if has_diverged else round(float(accuracy), 4),
        "training loss": None if has_diverged else round(float(loss), 4),
    }


def train_with_schedules(model, batch, phases, split, evaluated, *, rates, seed):
    """Train with learning rates that are known beforehand: one list of rates for each S.

    Args:
        model: what `experiments.models` has.
        batch: rows of a small batch.
        phases: S of each.
        split: training inputs and labels, NumPy arrays.
        evaluated: those of the split on which the training is measured at the end.
        rates: for each phase an array.
        seed: of initial weights and of the data's order.
    """
    x, y = on_device(split)
    state, begin = None, 0
    for scale, own_rates in zip(phases, rates, strict=True):
        # The mean of equal batches is one batch.
        inner = training(model, "momentum", "mean", 1, scale * batch)
        end = begin + len(own_rates)
        order = tf.constant(orders(len(split[1]), end, scale * batch, seed))
        padded = tf.constant(np.concatenate([np.zeros(begin), own_rates]), tf.float32)
        state = inner.initial(seed) if state is None else state
        between = (tf.constant(stop, tf.int32) for stop in (begin, end))
        state = inner.steps(state, x, y, order, padded, *between)
        begin = end
    return measured(inner, state[0], split, evaluated) | {"iterations": begin}


@functools.cache
def gain_training(model, replicas, batch, smoothing=None):
    """Return the `GainTraining` of these settings; made, and traced, once."""
    return GainTraining(model, replicas, batch, smoothing=smoothing)
