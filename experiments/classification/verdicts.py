"""Sentences on what was found of a claim."""

import statistics

from experiments.figures import NAMES

WORDS = {1: "better", 0: "no difference shown", -1: "worse"}


def median_of(found, replicas, rule, k):
    """Return the median on the test split."""
    return statistics.median(found.accuracies(replicas, rule, k))


def tuned(found, least=1):
    """Say where a rule is better than the mean, each at its best rate.

    Of several rules, or forms of one, it is the one that the validation split prefers.

    Args:
        found: a `tables.Found` of each problem.
        least: the number of replicas from which on the claim is made.
    """
    texts = []
    for own in found:
        said, signs = [], []
        digits = own.problem.measure.digits
        for n in (n for n in own.grids if n >= least):
            form = own.chosen(n)
            signs.append(own.is_better(n, form, tuned=True))
            numbers = ", ".join(
                f"{NAMES[rule]} {median_of(own, n, rule, own.best(n, rule)):.{digits}f}"
                for rule in (form, "mean")
            )
            said.append(f"on {n} {numbers} ({WORDS[signs[-1]]})")
        if signs:
            texts.append(f"**{word_of(signs)}** on {own.problem.title}: {'; '.join(said)}")
    return "<br>".join(texts) or "not played yet"


def word_of(signs):
    """Return the verdict on the signs of several numbers of replicas."""
    if -1 in signs:
        return "refuted"
    if 1 not in signs:
        return "not confirmed"
    return "confirmed" if set(signs) == {1} else "confirmed in part"
