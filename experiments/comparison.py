"""Medians with their range, and the paired test for the claim that one rule is better."""

import statistics

import numpy as np

SIGNIFICANT = 0.05
WORDS = {1: "confirmed", 0: "unconfirmed", -1: "refuted"}  # of a claim, by `sign`


def with_range(values, digits=3):
    """Return "median (lowest to highest)"."""
    low, high = min(values), max(values)
    median = statistics.median(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def paired_p(first, second):
    """Return the two-sided p of Wilcoxon's signed-rank test; 1 where all pairs are equal."""
    from scipy.stats import wilcoxon

    differences = np.asarray(first, float) - np.asarray(second, float)
    return float(wilcoxon(differences).pvalue) if differences.any() else 1.0


def holm(p_values):
    """Return p corrected for as many tests as there are, by Holm's method."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def sign(p, first, second):
    """Return 1 if the first median is larger, -1 if it is smaller, 0 if p is not significant."""
    first, second = map(statistics.median, (first, second))
    return (first > second) - (first < second) if p < SIGNIFICANT else 0


def p_text(p):
    """Return p with two digits."""
    return f"{p:.2g}" if p >= 0.001 else "<0.001"


def median_step(runs, target, values):
    """Return the median step at which curves are at the target or above; None if half are not.

    Args:
        runs: results with "steps".
        target: the value.
        values: a function from a result to the values at its steps, the larger the better.
    """
    found = [first_reaching(run["steps"], values(run), target) for run in runs]
    median = statistics.median_low([float("inf") if step is None else step for step in found])
    return None if median == float("inf") else median


def losses_of(runs):
    """Return the final losses, by seed; those that diverged are infinite."""
    return [float("inf") if run["loss"] is None else run["loss"] for run in runs]


def lowered(run):
    """Return the losses of a run with the sign that makes larger better."""
    return [None if loss is None else -loss for loss in run["losses"]]


def edges(names, where=""):
    """Name those whose best learning rate is an edge of the widest grid; "" for none."""
    return f"Best at an edge of the widest grid{where}: {', '.join(names)}." if names else ""


def first_reaching(steps, values, target):
    """Return the first step at which a curve is at the target or above, else None."""
    for step, value in zip(steps, values, strict=True):
        if value is not None and value >= target:
            return step
    return None
