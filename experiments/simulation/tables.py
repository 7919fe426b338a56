"""A training of N replicas whose gradients are sparse: the rows of tables that a batch touches.

Like `simulation.training`, but with the package's own `SparsePlan` instead of dense rows, and with
SGD, which needs no state for rows that no replica uses.

Shape legend: N replicas, B rows of each, K rows of a table that a replica touches, d of one row.
"""

import functools

import tensorflow as tf

from experiments.simulation import training_loop
from experiments.simulation.combination import RULES
from tf_adasum import ops, rules
from tf_adasum.aggregation.orthogonality import measures, orthogonality
from tf_adasum.aggregation.sparse import SparsePlan, coalesced


class SparseTraining:
    """The graph of one model on N replicas with SGD; runs any number of trainings, traced once.

    Args:
        model: with tables, such as `models.skipgram.SkipGram`.
        rule: one of `simulation.combination.RULES`, without a state.
        replicas: N.
        batch: B.
    """

    def __init__(self, model, rule, replicas, batch):
        self.model, self.rule = model, RULES[rule]()
        self.replicas, self.batch = replicas, batch
        tables = [tf.TensorSpec(shape) for shape in model.shapes]
        rows = [tf.TensorSpec([None, *own.shape], own.dtype) for own in model.example]
        order = tf.TensorSpec([None, replicas * batch], tf.int32)
        integer = tf.TensorSpec([], tf.int32)
        rates = tf.TensorSpec([None], tf.float32)
        self.steps = tf.function(self._steps, [tables, *rows, order, rates, integer, integer])
        self.loss = tf.function(model.loss)

    def combined(self, indices_NK, values_NKd):
        """Return the combination of all replicas' gradients of one table, `tf.IndexedSlices`."""
        if self.replicas == 1 or isinstance(self.rule, rules.Mean | rules.Sum):
            count = self.replicas if isinstance(self.rule, rules.Mean) else 1
            values = tf.reshape(values_NKd, [-1, values_NKd.shape[-1]]) / count
            return tf.IndexedSlices(values, tf.reshape(indices_NK, [-1]))
        plan, rows, segments = self._plan(indices_NK, values_NKd)
        coefficients, _ = self.rule.coefficients_and_state(ops.segment_gram(rows, segments), {})
        ((_, joined),) = plan.join([ops.segment_weighted_sum(rows, coefficients, segments)])
        return joined

    def _plan(self, indices_NK, values_NKd):
        """Return the package's plan for one table, and the rows and segments that it makes."""
        own = zip(tf.unstack(values_NKd), tf.unstack(indices_NK), strict=True)
        slices = [tf.IndexedSlices(*each) for each in own]
        plan = SparsePlan(0, slices[0], [coalesced(own) for own in slices], self.rule)
        ((rows, segments),) = plan.split(None)
        return plan, rows, segments

    @tf.function
    def orthogonality(self, tables, x, y):
        """Return the orthogonality of the replicas' gradients, of each table and overall.

        Args:
            tables: two tensors ``[V, d]``.
            x: rows ``[N B, …]``.
            y: their labels.
        """
        shape = [self.replicas, self.batch]
        x, y = (tf.reshape(own, [*shape, own.shape[-1]]) for own in (x, y))
        grams = []
        for gradient in self.model.gradients(tables, x, y):
            _, rows, segments = self._plan(*gradient)
            grams.append(ops.segment_gram(rows, segments))
        return orthogonality(measures(tf.concat(grams, axis=0)))

    def _steps(self, tables, x, y, order, rates, begin, end):
        """Take the steps from `begin` to before `end`; arguments as in `Training`."""

        def step(t, *tables):
            rows = order[t]
            shape = [self.replicas, self.batch, -1]
            own_x, own_y = (tf.reshape(tf.gather(own, rows), shape) for own in (x, y))
            own_x = tf.ensure_shape(own_x, [*shape[:2], x.shape[1]])
            moved = []
            for table, gradient in zip(
                tables, self.model.gradients(tables, own_x, own_y), strict=True
            ):
                slices = self.combined(*gradient)
                change = rates[t] * slices.values
                moved.append(tf.tensor_scatter_nd_sub(table, slices.indices[:, None], change))
            return t + 1, *moved

        return list(tf.while_loop(lambda t, *_: t < end, step, [begin, *tables])[1:])

    def initial(self, seed):
        """Return the tables before the first step."""
        return [tf.constant(own) for own in self.model.initial(seed)]

    def measure(self, tables, x, y):
        """Return the loss on a split."""
        return {"loss": self.loss(tables, x, y)}

    def train(self, split, evaluated, **options):
        """Train from the beginning; arguments and curves as `training_loop.train` has them.

        Returns:
            The curves, and the tables at the end, NumPy arrays.
        """
        curves, tables = training_loop.train(self, split, evaluated, **options)
        return curves, [own.numpy() for own in tables]


@functools.cache
def sparse_training(model, rule, replicas, batch):
    """Return the `SparseTraining` of these settings; made, and traced, once."""
    return SparseTraining(model, rule, replicas, batch)
