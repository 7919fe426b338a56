"""Learning rates of a whole training, step by step."""

import numpy as np


def warmup_and_decay(rate, steps, warmup):
    """Return ``[steps]``: from near 0 to `rate` in the fraction `warmup`, then linearly to 0."""
    t = np.arange(steps)
    rising = max(1, round(warmup * steps))
    falling = (steps - t) / max(1, steps - rising)
    return rate * np.minimum((t + 1) / rising, falling).clip(0, 1)


def constant(rate, steps):
    """Return ``[steps]`` times `rate`."""
    return np.full(steps, rate)
