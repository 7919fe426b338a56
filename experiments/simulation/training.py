"""A training of N replicas: steps in one graph, and their results."""

import functools

import numpy as np
import tensorflow as tf

from experiments.simulation import training_loop
from experiments.simulation.combination import Combination
from experiments.simulation.updates import UPDATES
from tf_adasum import ops
from tf_adasum.aggregation.orthogonality import measures, orthogonality


class Training:
    """The graph of one model on N replicas; runs any number of trainings, traced once.

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
        """Return each replica's gradient of its own mean loss ``[N, n]``, all at these weights."""
        rows = tf.broadcast_to(weights, [self.replicas, weights.shape[-1]])
        shape = [self.replicas, self.batch]
        x = tf.reshape(x, [*shape, *x.shape[1:]])
        y = tf.reshape(y, [*shape, *y.shape[1:]])
        return self._gradients_at_equal_rows(rows, x, y)

    def gradients_at(self, rows, x, y):
        """Return each replica's gradient of its own mean loss ``[N, n]``, at its row of weights."""
        # The layers compute all replicas with the weights of the first one, see `layers`.
        parts = zip(*(tf.split(own, self.replicas) for own in (rows, x, y)), strict=True)
        gradients = [
            self._gradients_at_equal_rows(row, own_x[None], own_y[None])
            for row, own_x, own_y in parts
        ]
        return tf.concat(gradients, axis=0)

    def _gradients_at_equal_rows(self, rows, x, y):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            logits = self.model.logits(self.unpacked(rows), x)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            total = tf.reduce_sum(losses) / (tf.size(y, tf.float32) / rows.shape[0])
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
        """Return the mean loss on a split, and the model's score: the accuracy, if not another."""
        logits = self.model.logits(self.unpacked(weights[None]), x[None])[0]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_mean(losses), self.model.score(logits, y)

    @tf.function
    def orthogonality(self, weights, x, y):
        """Return the orthogonality of the replicas' gradients ``[V + 1]``, the last one overall."""
        gram = ops.segment_gram(self.gradients(weights, x, y), list(self.offsets))
        return orthogonality(measures(gram))

    def measure(self, state, x, y):
        """Return loss and score of a state on a split."""
        loss, accuracy = self.evaluate(state[0], x, y)
        return {"loss": loss, "accuracy": accuracy}

    def train_and_look(self, splits, measure, random, batches, **options):
        """Train, and measure before each part of the steps, without a change of the training.

        Args:
            splits: of the data.
            measure: a function of the weights, and of the inputs and labels of all replicas.
            random: chooses them, `numpy.random.Generator`.
            batches: of how many such measurements the mean is taken.
            options: of `train`.

        Returns:
            The numbers of steps, the means there, and the accuracies after each part.
        """
        (x, y), steps, means = splits.train, [], []

        def look(step, state):
            values = []
            for _ in range(batches):
                chosen = random.choice(len(y), self.replicas * self.batch, replace=False)
                values.append(measure(state[0], tf.constant(x[chosen]), tf.constant(y[chosen])))
            steps.append(int(step))
            means.append(np.mean(values, axis=0).round(4).tolist())

        curves = self.train(splits.train, splits.validation, look=look, **options)
        return steps, means, curves["accuracy"]

    def train(self, split, evaluated, **options):
        """Train from the beginning; arguments and curves as `training_loop.train` has them."""
        return training_loop.train(self, split, evaluated, **options)[0]


def split_rule_name(rule):
    """Return a rule's name without " of steps", and whether it was there."""
    name = rule.removesuffix(" of steps").replace("one replica", "mean")
    return name, rule.endswith(" of steps")


@functools.cache
def training(model, optimizer, rule, replicas, batch, of_steps=False):
    """Return the `Training` of these settings; made, and traced, once."""
    return Training(model, optimizer, rule, replicas, batch, of_steps=of_steps)
