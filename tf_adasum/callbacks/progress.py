"""How many steps of one replica a step of N replicas is worth.

To first order, a step ``Σ_i c_i g_i`` moves as far down the true gradient μ as
``⟨Σ_i c_i g_i, μ⟩ / ‖μ‖²`` steps of one replica. Each g_i has the inner product ``‖μ‖²`` with μ on
average, so over the variables s of a model the *progress* of a step is

    Σ_s ‖μ_s‖² Σ_i c_i[s] / Σ_s ‖μ_s‖²

It is 1 for the mean and N for the sum. For any number of replicas, the coefficients follow from the
expected Gram matrix: ``‖g_s‖²`` on the diagonal and ``‖μ_s‖²`` elsewhere.

Shape legend: S variables.
"""

from collections.abc import Sequence

import numpy as np

from tf_adasum.aggregation import rules

PARTS = 8


def of_step(terms_2S: np.ndarray, replicas: int) -> float:
    """Return the progress of a step with N replicas.

    Args:
        terms_2S: the mean of ``‖g_s‖²`` over some steps, and of the inner products of two replicas.
        replicas: N.
    """
    squares_S, inner_S = terms_2S
    inner_S = np.clip(inner_S, 0, squares_S)[:, None, None]
    gram_SNN = inner_S + np.eye(replicas) * (squares_S[:, None, None] - inner_S)
    sums_S = np.sum(rules.Adasum().coefficients(gram_SNN), axis=1)
    return float(np.average(sums_S, weights=inner_S.ravel())) if inner_S.any() else 1.0


def ratio(terms: Sequence[np.ndarray], replicas: int, others: int) -> float:
    """Return how many steps with another number of replicas are worth a measured step.

    The measured steps are divided into `PARTS` parts of equal length, because gradients change in
    the course of a training.

    Args:
        terms: for each measured step, ``[2, S]`` as for `of_step`.
        replicas: the number of replicas of these steps.
        others: the other number.
    """
    parts = np.array_split(np.asarray(terms), min(PARTS, len(terms)))
    means = [(len(part), part.mean(axis=0)) for part in parts]
    steps = [n * of_step(mean, replicas) / of_step(mean, others) for n, mean in means]
    return sum(steps) / len(terms)
