"""A training of N replicas: steps in one graph, and the numbers that come out of it."""

import functools
import itertools

import numpy as np
import tensorflow as tf

from experiments.simulation.combination import Combination
from experiments.simulation.updates import UPDATES
from tf_adasum import ops
from tf_adasum.aggregation.orthogonality import orthogonality, squared_lengths


class Training:
    """The graph of one model on N replicas; plays any number of trainings, traced once.

    Args:
        model: what `experiments.models` has.
        optimizer: one of `simulation.updates.UPDATES`.
        rule: one of `simulation.combination.RULES`.
        replicas: N.
        batch: B, rows of each replica.
        of_steps: whether the replicas' own steps are combined, as `DeltaAdasum` does, and not their
            gradients.
    """

    def __init__(self, model, optimizer, rule, replicas, batch, *, of_steps=False):
        self.model, self.replicas, self.batch, self.of_steps = model, replicas, batch, of_steps
        self.offsets = np.cumsum([0, *(np.prod(shape, dtype=int) for shape in model.shapes)])
        self.update = UPDATES[optimizer](self.offsets)
        self.combination = Combination(rule, replicas, self.offsets)
        state = tf.nest.map_structure(tf.TensorSpec.from_tensor, self.initial(0))
        integer = tf.TensorSpec([], tf.int32)
        order = tf.TensorSpec([None, replicas * batch], tf.int32)
        rates = tf.TensorSpec([None], tf.float32)
        rows = [tf.TensorSpec([None, *own.shape], own.dtype) for own in model.example]
        # Traced once, whatever the number of steps and of rows.
        self.steps = tf.function(self._steps, [state, *rows, order, rates, integer, integer])

    def initial(self, seed):
        """Return weights and states before the first step."""
        weights = tf.constant(np.concatenate([own.ravel() for own in self.model.initial(seed)]))
        rows = self.replicas if self.of_steps else 1
        return weights, self.update.initial_state(rows), self.combination.initial_state()

    def unpacked(self, rows):
        """Return the variables ``[R, ...]`` in rows of weights ``[R, n]``."""
        parts = tf.split(rows, np.diff(self.offsets), axis=1)
        return [
            tf.reshape(part, [rows.shape[0], *shape])
            for part, shape in zip(parts, self.model.shapes, strict=True)
        ]

    def gradients(self, weights, x, y):
        """Return each replica's gradient of its own mean loss ``[N, n]``."""
        rows = tf.broadcast_to(weights, [self.replicas, weights.shape[0]])
        shape = [self.replicas, self.batch]
        x = tf.reshape(x, [*shape, *x.shape[1:]])
        y = tf.reshape(y, [*shape, *y.shape[1:]])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            logits = self.model.logits(self.unpacked(rows), x)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            total = tf.reduce_sum(losses) / (tf.size(y, tf.float32) / self.replicas)
        return tape.gradient(total, rows)

    def _steps(self, state, x, y, order, rates, begin, end):
        """Take the steps from `begin` to before `end`.

        Args:
            state: as returned by `initial`, or by this.
            x: all inputs of the training split.
            y: their labels.
            order: ``[T, N B]``, the rows of each step; replica i takes the i-th B of them.
            rates: ``[T]``, the learning rates.
            begin: int32, how many steps were taken before.
            end: int32.

        Returns:
            The state after these steps.
        """

        def step(t, weights, slots, remembered):
            rows = tf.ensure_shape(order[t], [self.replicas * self.batch])
            g = self.gradients(weights, tf.gather(x, rows), tf.gather(y, rows))
            number = tf.cast(t + 1, tf.float32)
            if not self.of_steps:
                g, remembered = self.combination(g, remembered)
                g = g[None]
            change, slots = self.update.step(g, weights, slots, rates[t], number)
            if self.of_steps:
                change, remembered = self.combination(change, remembered)
            else:
                change = change[0]
            return t + 1, weights + change, slots, remembered

        return tuple(tf.while_loop(lambda t, *_: t < end, step, [begin, *state])[1:])

    @tf.function
    def evaluate(self, weights, x, y):
        """Return mean loss and accuracy on a split."""
        logits = self.model.logits(self.unpacked(weights[None]), x[None])[0]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        hits = tf.cast(tf.argmax(logits, -1, y.dtype) == y, tf.float32)
        return tf.reduce_mean(losses), tf.reduce_mean(hits)

    @tf.function
    def orthogonality(self, weights, x, y):
        """Return the orthogonality of the replicas' gradients ``[V + 1]``, the last one overall."""
        gram = ops.segment_gram(self.gradients(weights, x, y), list(self.offsets))
        return orthogonality(*squared_lengths(gram))

    def play(self, split, evaluated, *, steps, rates, seed, evaluations=20, look=None):
        """Train from the beginning.

        Args:
            split: training inputs and labels, NumPy arrays.
            evaluated: those of the split on which the training is measured.
            steps: T.
            rates: ``[T]``.
            seed: of initial weights and of the data's order.
            evaluations: how often it is measured, in equal distances.
            look: called with the number of steps and the state, before each part of the steps.

        Returns:
            dict with lists: "step", "loss" and "accuracy" at each measurement.
        """
        x, y = _on_device(split)
        held = _on_device(evaluated)
        order = tf.constant(orders(len(split[1]), steps, self.replicas * self.batch, seed))
        rates = tf.constant(rates, tf.float32)
        state = self.initial(seed)
        stops = np.unique(np.linspace(0, steps, min(evaluations, steps) + 1).round().astype(int))
        curves = {"step": [], "loss": [], "accuracy": []}
        for begin, end in itertools.pairwise(stops):
            if look is not None:
                look(begin, state)
            between = (tf.constant(stop, tf.int32) for stop in (begin, end))
            state = self.steps(state, x, y, order, rates, *between)
            loss, accuracy = (float(own) for own in self.evaluate(state[0], *held))
            curves["step"].append(int(end))
            curves["loss"].append(round(loss, 4) if np.isfinite(loss) else None)
            curves["accuracy"].append(round(accuracy, 4))
            if not np.isfinite(loss):
                break
        return curves


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


_CACHE: dict = {}


def _on_device(split):
    """Return the tensors of a split's arrays; made once for each."""
    key = tuple(map(id, split))
    if key not in _CACHE:
        _CACHE[key] = (split, tuple(map(tf.constant, split)))
    return _CACHE[key][1]


def parted(rule):
    """Return a rule's name without " of steps", and whether it was there."""
    name = rule.removesuffix(" of steps").replace("one replica", "mean")
    return name, rule.endswith(" of steps")


@functools.cache
def training(model, optimizer, rule, replicas, batch, of_steps=False):
    """Return the `Training` of these settings; made, and traced, once."""
    return Training(model, optimizer, rule, replicas, batch, of_steps=of_steps)
