"""Verdicts on a claim."""

import statistics

from experiments.experiment import Verdict
from experiments.figures import NAMES
from experiments.page import anchor_of

WORDS = {1: "better", 0: "no difference", -1: "worse"}


def median_of(found, replicas, rule, k):
    """Return the median on the test split."""
    return statistics.median(found.accuracies(replicas, rule, k))


def tuned(found, least=1, page=""):
    """Return the verdicts on whether a rule is better than the mean, each at its best rate.

    Of several rules, or forms of one, it is the one that the validation split prefers.

    Args:
        found: a `tables.ProblemResults` of each problem.
        least: the number of replicas from which on the claim is made.
        page: that has the tables; "" for the same one.
    """
    texts = []
    for own in found:
        numbers, signs = {}, []
        digits = own.problem.measure.digits
        for n in (n for n in own.grids if n >= least):
            form = own.chosen(n)
            signs.append(own.is_better(n, form, tuned=True))
            medians = ", ".join(
                f"{NAMES[rule]} {median_of(own, n, rule, own.best(n, rule)):.{digits}f}"
                for rule in (form, "mean")
            )
            numbers[f"on {n}"] = f"{medians} ({WORDS[signs[-1]]})"
        if signs:
            texts.append(Verdict(word_of(signs), training_of(own.problem, page), numbers))
    return texts


def training_of(problem, page=""):
    """Return the title of a problem, as a link to its tables on a page."""
    return f"[{problem.title}]({page}#{anchor_of(problem.title)})"


def word_of(signs):
    """Return the verdict on the signs of several numbers of replicas."""
    if -1 in signs:
        return "refuted"
    if 1 not in signs:
        return "unconfirmed"
    return "confirmed" if set(signs) == {1} else "partly"
