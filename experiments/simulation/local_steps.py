"""A training whose replicas take several steps of their own between two combinations."""

import functools

import tensorflow as tf

from experiments.simulation.training import Training

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # of DiLoCo


class LocalTraining(Training):
    """Like `Training` with `of_steps`, but it combines the changes of several steps.

    With ``outer``, the combined change Δ of the weights is the negative gradient of Nesterov's
    momentum, as in DiLoCo (arXiv 2311.08105): ``v ← μ v + Δ;  w ← w + η (Δ + μ v)`` with
    η = `OUTER_RATE` and μ = `OUTER_MOMENTUM`. Without, ``w ← w + Δ``.

    Args:
        local_steps: k, the number of steps between two combinations. The last steps are
            also combined, even if they are fewer than k.
        outer: whether the outer optimizer is used.
    """

    def __init__(self, model, optimizer, rule, replicas, batch, *, local_steps, outer):
        self.local_steps, self.outer = local_steps, outer
        super().__init__(model, optimizer, rule, replicas, batch, of_steps=True)

    def initial(self, seed):
        """Return weights and states before the first step; each replica's own weights are last."""
        weights, slots, remembered = super().initial(seed)
        return weights, slots, remembered, tf.zeros_like(weights), self._copied(weights)

    def _copied(self, weights):
        return tf.broadcast_to(weights, [self.replicas, weights.shape[0]])

    def _steps(self, state, x, y, order, rates, begin, end):
        def step(t, weights, slots, remembered, velocity, own_weights):
            chosen = tf.ensure_shape(order[t], [self.replicas * self.batch])
            g = self.gradients_at(own_weights, tf.gather(x, chosen), tf.gather(y, chosen))
            number = tf.cast(t + 1, tf.float32)
            change, slots = self.update.step(g, weights, slots, rates[t], number)
            own_weights += change
            is_last = tf.equal(t + 1, tf.shape(rates)[0])
            state = tf.cond(
                tf.equal((t + 1) % self.local_steps, 0) | is_last,
                lambda: self._combined(weights, remembered, velocity, own_weights),
                lambda: (weights, remembered, velocity, own_weights),
            )
            return t + 1, state[0], slots, *state[1:]

        return tuple(tf.while_loop(lambda t, *_: t < end, step, [begin, *state])[1:])

    def _combined(self, weights, remembered, velocity, own_weights):
        change, remembered = self.combination(own_weights - weights, remembered)
        if self.outer:
            velocity = OUTER_MOMENTUM * velocity + change
            change = OUTER_RATE * (change + OUTER_MOMENTUM * velocity)
        weights += change
        return weights, remembered, velocity, self._copied(weights)


@functools.cache
def local_training(model, optimizer, rule, replicas, batch, local_steps, outer):
    """Return the `LocalTraining` of these settings, which is traced only once."""
    return LocalTraining(
        model, optimizer, rule, replicas, batch, local_steps=local_steps, outer=outer
    )
