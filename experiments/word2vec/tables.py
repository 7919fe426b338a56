"""The results of word2vec's runs, in numbers and pictures."""

import functools
import statistics

import numpy as np

from experiments.comparison import WORDS, edges, holm, losses_of, p_text, paired_p, sign, with_range
from experiments.experiment import Claim, Verdict
from experiments.figures import COLUMNS, NAMES, legend, rate_axis, style_of
from experiments.page import markdown
from experiments.word2vec.experiment import DIVERGED, ONE, summed

SOURCE = "Maleki et al., the authors' slides, word2vec"
CLAIMS = (
    ("On 32 nodes, Adasum matches the accuracy of one", SOURCE),
    ("On word2vec with tuned learning rates, Adasum is better than the mean", "ours"),
)
MATCHES = 0.01  # of the loss: how far above one replica's a rule matches it
# Crosses that lie on one another can be told apart.
CROSSES = {ONE: "1", "mean": "+", "adasum": "x"}
HIGHEST = 4.2  # in the figure; untrained tables have 4.159
NEAR = 10  # neighbours among which the other word of a pair is looked for


class ProblemResults:
    """The finished runs of a batch on N replicas, beside those of one replica."""

    def __init__(self, experiment, results, batch, replicas):
        self.experiment, self.results = experiment, results
        self.batch, self.replicas = batch, replicas
        self.rate = experiment.search_of(batch).rate
        self.alone = experiment.alone(results, batch)
        self.k_alone = self.alone.best(results, self.alone.settings[0])
        self.grid = experiment.together(results, batch, replicas, self.k_alone)

    def best(self, rule):
        """Return the best exponent."""
        setting = self.experiment.setting(self.batch, self.replicas, rule)
        return self.grid.best(self.results, setting)

    def runs(self, rule, k):
        """Return the results on the test split."""
        if rule == ONE:
            cases = self.alone.runs(self.alone.settings[0], k, "test")
        else:
            setting = self.experiment.setting(self.batch, self.replicas, rule)
            cases = self.grid.runs(setting, k, "test")
        return [self.results[case] for case in cases]

    def losses(self, rule, k):
        """Return the final losses, by seed; those that diverged are infinite."""
        return losses_of(self.runs(rule, k))

    def near(self, rule, k):
        """Return the share of words whose other word is near, by seed."""
        return [float(np.mean(np.array(run["ranks"]) <= NEAR)) for run in self.runs(rule, k)]

    @functools.cached_property
    def compared(self):
        """The lines of the table: a name, a rule and an exponent."""
        sum_at = self.k_alone + summed(self.replicas)
        return [
            ("mean, same learning rate", "mean", self.k_alone),
            ("sum, same learning rate", "mean", sum_at),
            ("Adasum, same learning rate", "adasum", self.k_alone),
            ("mean (or sum), tuned", "mean", self.best("mean")),
            ("Adasum, tuned", "adasum", self.best("adasum")),
        ]

    def matches(self, rule, k):
        """Whether a rule's median loss is no more than `MATCHES` above one replica's."""
        alone = statistics.median(self.losses(ONE, self.k_alone))
        return statistics.median(self.losses(rule, k)) <= (1 + MATCHES) * alone


def loss_text(losses):
    """Return the median with the range, or that it diverged."""
    if statistics.median(losses) > DIVERGED:
        return "diverges"
    return with_range([min(loss, DIVERGED) for loss in losses])


def tests(found):
    """Return p of each (batch, N, "same" or "tuned") of Adasum against the tuned mean."""
    keys, values = [], []
    for own in found:
        mean = own.losses("mean", own.best("mean"))
        for name, k in (("same", own.k_alone), ("tuned", own.best("adasum"))):
            keys.append((own.batch, own.replicas, name))
            values.append(paired_p(own.losses("adasum", k), mean))
    return dict(zip(keys, holm(values), strict=True))


def report(experiment, results, pictures):
    """Return verdicts and body."""
    found = [
        ProblemResults(experiment, results, batch, n)
        for batch, numbers in experiment.batches
        for n in numbers
    ]
    p_values = tests(found)
    draw(found, pictures)
    body = [
        pictures.image("rates", "Loss over the learning rate, a panel for each number of replicas"),
        markdown(
            ["pairs of a replica", "N", "steps", "rule", "learning rate", "test loss", "p", "near"],
            [row for own in found for row in rows(own, p_values, own is first_of(found, own))],
        ),
        "Orthogonality of the replicas' gradients after a quarter of one replica's training at its "
        f"best learning rate (1: all are orthogonal): {', '.join(map(orthogonality, found))}.",
        *filter(None, map(limits, found)),
    ]
    said = [list(map(matching, found)), [against_mean(own, p_values) for own in found]]
    claims = [Claim(*claim, own) for claim, own in zip(CLAIMS, said, strict=True)]
    return claims, "\n\n".join(body)


def first_of(found, own):
    """Return the first of a batch."""
    return next(other for other in found if other.batch == own.batch)


def rows(own, p_values, with_alone):
    """Return the rows of the table."""
    lines = [("one replica", ONE, own.k_alone)] if with_alone else []
    for name, rule, k in lines + own.compared:
        replicas = 1 if rule == ONE else own.replicas
        key = own.batch, own.replicas, name.removeprefix("Adasum, ").removesuffix(" learning rate")
        steps = own.experiment.pairs // (own.batch * replicas)
        p = p_text(p_values[key]) if rule == "adasum" else ""
        numbers = [f"{own.rate(k):g}", loss_text(own.losses(rule, k)), p]
        yield [own.batch, replicas, steps, name, *numbers, with_range(own.near(rule, k), 2)]


def orthogonality(own):
    """Say how orthogonal the gradients are."""
    cases = own.experiment.measured(own.batch, own.replicas, own.k_alone)
    overall = statistics.mean(own.results[case]["overall"] for case in cases)
    return f"{overall:.3f} on {where(own)}"


def limits(own):
    """Name the rules whose best learning rate is an edge of the widest grid."""
    names = [NAMES[setting["rule"]] for setting in own.grid.limited]
    return edges(names, f" on {own.replicas}")


def matching(own):
    """Return whether Adasum matches one replica: at its learning rate, and tuned."""
    alone = own.losses(ONE, own.k_alone)
    same, tuned = own.k_alone, own.best("adasum")
    word = "unconfirmed"
    if own.matches("adasum", tuned):
        word = "confirmed" if own.matches("adasum", same) else "partly"
    numbers = {}
    for name, rule, k, losses in (
        ("one replica", ONE, own.k_alone, alone),
        ("Adasum, same learning rate", "adasum", same, own.losses("adasum", same)),
        ("Adasum, tuned", "adasum", tuned, own.losses("adasum", tuned)),
    ):
        near = statistics.median(own.near(rule, k))
        numbers[name] = f"loss {loss_text(losses).split(' ')[0]}, near {near:.2f}"
    return Verdict(word, where(own), numbers)


def where(own):
    """Return the number of replicas and the batch in words."""
    return f"{own.replicas} replicas, {own.batch} pairs each"


def against_mean(own, p_values):
    """Return which of Adasum and a tuned mean is better, and whether the mean matches one."""
    k_mean, k_own = own.best("mean"), own.best("adasum")
    mean, adasum = own.losses("mean", k_mean), own.losses("adasum", k_own)
    p = p_values[own.batch, own.replicas, "tuned"]
    word = WORDS[sign(p, mean, adasum)]  # of losses
    does = "yes" if own.matches("mean", k_mean) else "no"
    numbers = {"loss of Adasum": adasum, "loss of the mean": mean}
    numbers = {name: loss_text(losses).split(" ")[0] for name, losses in numbers.items()}
    numbers |= {"p": p_text(p), "does the mean match one replica": does}
    return Verdict(word, where(own), numbers)


def draw(found, pictures):
    """Draw the loss over the rates."""
    with pictures.drawn("rates", len(found), sharey=True) as (figure, axes):
        for axis, own in zip(axes, found, strict=True):
            for setting in [*own.alone.settings, *own.grid.settings]:
                curve(axis, own, own.alone if setting["rule"] == ONE else own.grid, setting)
            tried = list(map(own.rate, own.grid.exponents))
            rate_axis(axis, tried, f"N = {own.replicas}, {own.batch} pairs each")
        for axis in axes[::COLUMNS]:
            axis.set_ylabel("validation loss (lower is better)")
        axes[0].set_ylim(2.5, HIGHEST + 0.1)
        legend(figure, axes)


def curve(axes, own, grid, setting):
    """Draw the median loss of a rule over the rates; a cross at the top where it diverges."""
    rule, points, crosses = setting["rule"], [], []
    for k in grid.exponents:
        (score_of,) = grid.median(own.results, setting, k)
        (points if score_of > -DIVERGED else crosses).append((own.rate(k), -score_of))
    style = style_of(rule)
    if rule == ONE:  # below the others, which may hide it
        style |= {"lw": 5, "ms": 10, "alpha": 0.5}
    axes.plot(*zip(*points, strict=True), **style)
    if crosses:
        x = [rate for rate, _ in crosses]
        marks = style_of(rule, marker=CROSSES[rule], ls="", ms=7)
        marks["label"] += " diverges"
        axes.plot(x, [HIGHEST] * len(x), **marks)
