"""Independent float64 oracles of the optimizers, in NumPy, on vectors, in the papers' order.

Shape letters: T steps, C gradients per step, n elements.
"""

import numpy as np


class AdaScaleOracle:
    """AdaScale above SGD with momentum, on one vector of weights.

    Args:
        weights: ``[n]``.
        learning_rate: float, or a function of the scale-invariant step.
        scale: S.
        momentum: of Keras's SGD: m ← momentum·m - η·g, w ← w + m.
        smoothing: θ; None for max(1 - S/1000, 0).
        debias: which moving average.
    """

    def __init__(self, weights, learning_rate, scale, momentum=0.0, smoothing=None, debias=True):
        self.weights = np.array(weights, np.float64)
        self.velocity = np.zeros_like(self.weights)
        self.lr = learning_rate if callable(learning_rate) else lambda step: learning_rate
        self.scale, self.momentum = scale, momentum
        self.smoothing, self.debias = smoothing, debias
        self.tau, self.gain = 0.0, 1.0
        self.samples = []  # (σ²_t, μ²_t) of every step

    def step(self, gradients):
        """One step on the gradients ``[C, n]`` of the small batches."""
        gradients = np.asarray(gradients, np.float64)
        count, mean = len(gradients), gradients.mean(axis=0)
        squares = np.sum(gradients**2)
        variance = self.scale / (count * (count - 1)) * squares - self.scale / (count - 1) * np.sum(
            mean**2
        )
        variance = max(variance, 1e-6)
        squared_norm = max(np.sum(mean**2) - variance / self.scale, 0)
        if np.isfinite(variance + squared_norm):
            self.samples.append((variance, squared_norm))
            sigma, mu = self.averages()
            self.gain = (sigma + mu) / (sigma / self.scale + mu)
            advance = self.gain
        else:
            advance = 0
        eta = self.gain * self.lr(int(np.floor(self.tau)))
        self.velocity = self.momentum * self.velocity - eta * mean
        self.weights = self.weights + self.velocity
        self.tau += advance

    def averages(self):
        """The moving averages of σ² and μ², anew from all samples."""
        theta = max(1 - self.scale / 1000, 0) if self.smoothing is None else self.smoothing
        samples = np.array(self.samples)
        steps = len(samples)
        if self.debias:
            weights = theta ** np.arange(steps - 1, -1, -1.0) * (1 - theta)
            return weights @ samples / (1 - theta**steps)
        average = samples[0]
        for count in range(2, steps + 1):
            if count < 1 / (1 - theta):
                average = samples[:count].mean(axis=0)
            else:
                average = theta * average + (1 - theta) * samples[count - 1]
        return average
