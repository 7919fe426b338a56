"""The results of a classification, in numbers."""

import functools
import statistics

from experiments.classification.problem import k_of_sum
from experiments.comparison import edges, holm, median_step, p_text, paired_p, sign, with_range
from experiments.figures import NAMES
from experiments.page import markdown


class ProblemResults:
    """The finished runs of a problem.

    Attributes:
        problem: the `Problem`.
        alone: the `Grid` of one replica.
        k_alone: its best exponent.
        grids: of each number of replicas.
    """

    def __init__(self, experiment, results, problem):
        self.results, self.problem = results, problem
        self.rate = experiment.search.rate
        self.alone = experiment.alone(results, problem)
        self.k_alone = self.alone.best(results, self.alone.settings[0])
        self.grids = {
            n: experiment.together(results, problem, n, self.k_alone)
            for n in experiment.replicas_of(problem)
        }

    def best(self, replicas, rule):
        """Return the best exponent."""
        return self.grids[replicas].best(self.results, self.problem.setting(replicas, rule))

    def chosen(self, replicas):
        """Return the form of Adasum that is best on the validation split, at its best rate."""
        grid = self.grids[replicas]

        def score(rule):
            setting = self.problem.setting(replicas, rule)
            return grid.median(self.results, setting, self.best(replicas, rule))

        return max((rule for rule in self.problem.rules if rule != "mean"), key=score)

    def finals(self, replicas, rule, k):
        """Return the results on the test split."""
        if replicas == 1:
            cases = self.alone.runs(self.alone.settings[0], k, "test")
        else:
            cases = self.grids[replicas].runs(self.problem.setting(replicas, rule), k, "test")
        return [self.results[case] for case in cases]

    def accuracies(self, replicas, rule, k):
        """Return the accuracies on the test split, by seed."""
        return [result["accuracy"] for result in self.finals(replicas, rule, k)]

    def accuracies_of_sum(self, replicas):
        """Return the accuracies of the sum at one replica's rate, by seed."""
        return self.accuracies(replicas, "mean", k_of_sum(self.k_alone, replicas))

    @functools.cached_property
    def alone_accuracies(self):
        """Those of one replica."""
        return self.accuracies(1, None, self.k_alone)

    @functools.cached_property
    def target(self):
        """The target of the measure; the tables have the number of steps to it."""
        measure = self.problem.measure
        return round(statistics.median(self.alone_accuracies) - measure.lost, measure.digits)

    def steps_to_target(self, replicas, rule, k, target=None):
        """Return the median number of steps to the target; None if half of the seeds miss it."""
        target = self.target if target is None else target
        runs = self.finals(replicas, rule, k)
        return median_step(runs, target, lambda result: result["accuracies"])

    @functools.cache  # noqa: B019 - there are few, and they live as long as the program
    def tests(self, *, tuned):
        """Return for each (replicas, rule) the corrected p against the mean."""
        pairs = [(n, rule) for n in self.grids for rule in self.problem.rules if rule != "mean"]
        values = [paired_p(*self.compared(n, rule, tuned=tuned)) for n, rule in pairs]
        return dict(zip(pairs, holm(values), strict=True))

    def compared(self, replicas, rule, *, tuned):
        """Return the accuracies of a rule and of the mean, by seed."""
        return [
            self.accuracies(replicas, name, self.best(replicas, name) if tuned else self.k_alone)
            for name in (rule, "mean")
        ]

    def is_better(self, replicas, rule, *, tuned):
        """Return 1 if a rule is better than the mean, -1 if it is worse, 0 without a difference."""
        p = self.tests(tuned=tuned)[replicas, rule]
        return sign(p, *self.compared(replicas, rule, tuned=tuned))


def section(found, pictures):
    """Return the table of a problem, its figures, and the limits of its search."""
    digits = found.problem.measure.digits
    same, tuned = (found.tests(tuned=own) for own in (False, True))
    rows = [["1", "one replica", with_range(found.alone_accuracies, digits), "", "", "", "", ""]]
    rows[0][4] = f"{found.rate(found.k_alone):g}"
    rows[0][7] = steps_text(found.steps_to_target(1, None, found.k_alone))
    for n in found.grids:
        if found.problem.has_sum:
            accuracies = with_range(found.accuracies_of_sum(n), digits)
            rows.append([n, NAMES["sum"], accuracies, "", "", "", "", ""])
        for rule in found.problem.rules:
            k = found.best(n, rule)
            rows.append(
                [
                    n,
                    NAMES[rule],
                    with_range(found.accuracies(n, rule, found.k_alone), digits),
                    p_text(same[n, rule]) if rule != "mean" else "",
                    f"{found.rate(k):g}",
                    with_range(found.accuracies(n, rule, k), digits),
                    p_text(tuned[n, rule]) if rule != "mean" else "",
                    steps_text(found.steps_to_target(n, rule, k)),
                ]
            )
    header = ["N", "rule", "same learning rate", "p", "best learning rate", "tuned", "p"]
    header.append(f"steps to {found.target:.{digits}f}")
    slug, measured = found.problem.slug, found.problem.measure.name
    measured = measured[0].upper() + measured[1:]
    parts = [
        f"### {found.problem.title[:1].upper()}{found.problem.title[1:]}",
        pictures.image(f"{slug}-rates", f"{measured} over the learning rate, a panel for each N"),
        pictures.image(f"{slug}-replicas", f"{measured} and steps to a target over replicas")
        if len(found.grids) > 1
        else "",
        markdown(header, rows),
        limits(found),
    ]
    return "\n\n".join(filter(None, parts))


def steps_text(steps):
    """Return a number of steps, or a dash."""
    return "–" if steps is None else f"{steps:g}"


def limits(found):
    """Name the rules whose best learning rate is an edge of the widest grid."""
    named = [
        f"{NAMES[setting['rule']]} on {n}"
        for n, grid in found.grids.items()
        for setting in grid.limited
    ]
    return edges(named)
