"""The optimizers' steps on rows of weights; each row has its own state.

The equations of Keras's `SGD` and `Adam` and of `tf_adasum.optimizers.LAMB`, on rows ``[R, n]``:
R = 1 if gradients are combined first, R = N if each replica takes its own step.

Shape legend: R rows, n weights, V variables.
"""

import numpy as np
import tensorflow as tf


class Update:
    """An optimizer without variables: ``step`` returns the change of the weights and its state.

    Args:
        offsets: ``[V + 1]``, where each variable begins, and n.
    """

    slots = 0

    def __init__(self, offsets):
        self.offsets = np.asarray(offsets)

    def initial_state(self, rows):
        """Return zeros ``[slots, R, n]``."""
        return tf.zeros([self.slots, rows, int(self.offsets[-1])])

    def step(self, g, w, state, rate, t):
        """Return the change ``[R, n]`` and the next state.

        Args:
            g: gradients ``[R, n]``.
            w: weights ``[n]``.
            state: as made by `initial_state`.
            rate: η, scalar.
            t: the number of this step, from 1, float32.
        """
        raise NotImplementedError


class SGD(Update):
    """``Δ = -η g``."""

    def step(self, g, w, state, rate, t):
        """Return the change and the state."""
        return -rate * g, state


class Momentum(Update):
    """``m ← 0.9 m - η g;  Δ = m``, as Keras's `SGD(momentum=0.9)`."""

    slots = 1
    momentum = 0.9

    def step(self, g, w, state, rate, t):
        """Return the change and the state."""
        m = self.momentum * state[0] - rate * g
        return m, m[None]


class Adam(Update):
    """``Δ = -η √(1 - β2^t) / (1 - β1^t) · m / (√v + ε)``, as Keras's `Adam`."""

    slots = 2
    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-7

    def moments(self, g, state):
        """Return m and v after a gradient."""
        m = self.beta_1 * state[0] + (1 - self.beta_1) * g
        v = self.beta_2 * state[1] + (1 - self.beta_2) * tf.square(g)
        return m, v

    def step(self, g, w, state, rate, t):
        """Return the change and the state."""
        m, v = self.moments(g, state)
        alpha = rate * tf.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t)
        return -alpha * m / (tf.sqrt(v) + self.epsilon), tf.stack([m, v])


class LAMB(Adam):
    """``Δ = -η ‖w‖/‖u‖ u`` on each variable, with ``u = m̂ / (√v̂ + ε)``."""

    epsilon = 1e-6

    def __init__(self, offsets):
        super().__init__(offsets)
        counts = np.diff(self.offsets)
        self.variable_of = np.repeat(np.arange(len(counts)), counts)
        self.belongs_nV = tf.one_hot(self.variable_of, len(counts))

    def step(self, g, w, state, rate, t):
        """Return the change and the state."""
        m, v = self.moments(g, state)
        u = (m / (1 - self.beta_1**t)) / (tf.sqrt(v / (1 - self.beta_2**t)) + self.epsilon)
        w_norm, u_norm = (tf.sqrt(tf.square(x) @ self.belongs_nV) for x in (w[None], u))
        both = (w_norm > 0) & (u_norm > 0)
        ratio = tf.where(both, tf.math.divide_no_nan(w_norm, u_norm), 1.0)
        return -rate * tf.gather(ratio, self.variable_of, axis=1) * u, tf.stack([m, v])


UPDATES = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "lamb": LAMB,
}
