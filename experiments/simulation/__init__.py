"""N replicas in one process, as one batched graph: many short trainings in little time.

What counts in an experiment is the number of trainings. The replicas of `AdasumMirroredStrategy`
have equal weights at the start of every step, so that one graph can take the batches of all of
them, give each replica's gradient, apply the package's rules to these rows, and update once:

    weights [n] ── layers ──▶ gradients [N, n] ── combination ──▶ [n] ── updates ──▶ weights [n]

`tests/test_experiments.py` shows that this ends with the weights that `fit` under the strategy
gives.

Shape legend: N replicas, B rows of each, n weights, V variables, T steps.
"""

from experiments.simulation.training import Training

__all__ = ["Training"]
