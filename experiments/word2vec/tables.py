"""What the runs of word2vec say, in numbers and pictures."""

import functools
import statistics

import numpy as np

from experiments.comparison import SIGNIFICANT, holm, p_text, paired_p, with_range
from experiments.figures import COLOURS, MARKERS, NAMES, legend, median_and_range
from experiments.page import markdown
from experiments.word2vec.experiment import DIVERGED, ONE, RULES, summed

SOURCE = "Maleki et al., MLSys 2021, the slide on word2vec"
CLAIMS = (
    "on 32 nodes Adasum matches the accuracy of one",
    "beside it the mean has a tuned rate",
)
MATCHES = 0.01  # of the loss: how far above one replica's a rule matches it
# Curves, and crosses, that lie on one another can be told apart.
LINES = {ONE: {"lw": 5, "alpha": 0.5}, "mean": {}, "adasum": {"ls": "--"}}
CROSSES = {ONE: "1", "mean": "+", "adasum": "x"}
HIGHEST = 4.2  # in the figure; untrained tables have 4.159
NEAR = 10  # neighbours among which the other word of a pair is looked for

INTRODUCTION = """\
Skip-gram with negative sampling: 3000 words, vectors of 32, windows of up to 3 words, 5 words drawn
for each pair, plain SGD with a rate that falls linearly to 0, tables that start as word2vec's. Each
training sees 1,048,576 of the 2.3 million pairs of 40 works of Shakespeare, once; Macbeth is for
the search, Hamlet for the test. Gradients are sparse, and Adasum combines the rows that some
replica has touched, by the package's own `SparsePlan`. *Published*, without numbers: on 32 nodes,
with a tuned rate for averaging, Adasum matches sequential accuracy. *Loss* is that of a pair,
summed over the word near it and the five drawn (4.159 before the training), on the test text, of
eight seeds, as median (lowest to highest). *Matches* is no more than 1 % above one replica. *Same
rate* is the best one of one replica. The sum at a rate r is the mean at N·r: the same runs. p is of
Wilcoxon's paired test of the loss against the tuned mean, corrected by Holm's method for all tests
of the table. A training sees no more pairs for the time it takes; their number, and the batch of
128, were chosen after a look at the validation text.

*Near* is the share of words that have the other word of their pair among their 10 nearest
neighbours, by cosine (by chance 0.003). The pairs were chosen before the first training, by a rule:
the 60 pairs of words that most often stand as “A and B” in the training text, in either order,
without the 40 most frequent words of all: up and down, flesh and blood, drum and colours, five and
twenty, day and night, heaven and earth, here and there, Brutus and Sicinius, …; four more were
named beforehand.

*Why, as we think.* Each pair touches 7 of 6000 rows, so that the gradients of different replicas
are nearly orthogonal (below): then Adasum is nearly the sum, which is right here, and finds it at
one replica's rate. The mean needs N times that rate, and somebody who looks for it. A million pairs
are few, whatever the rule: many words have not found their neighbours yet."""


class Found:
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
        return [float("inf") if run["loss"] is None else run["loss"] for run in self.runs(rule, k)]

    def near(self, rule, k):
        """Return the share of words whose other word is near, by seed."""
        return [float(np.mean(np.array(run["ranks"]) <= NEAR)) for run in self.runs(rule, k)]

    def named(self, rule, k):
        """Return the ranks of the pairs that were named, int ``[seeds, pairs, 2]``."""
        return np.array([run["named"] for run in self.runs(rule, k)])

    @functools.cached_property
    def compared(self):
        """The lines of the table: a name, a rule and an exponent."""
        sum_at = self.k_alone + summed(self.replicas)
        return [
            ("mean, same rate", "mean", self.k_alone),
            ("sum, same rate", "mean", sum_at),
            ("Adasum, same rate", "adasum", self.k_alone),
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
    finished = [
        (batch, n)
        for batch, numbers in experiment.batches
        for n in numbers
        if experiment.is_finished(results, batch, n)
    ]
    if not finished:
        return [(claim, SOURCE, "not played yet") for claim in CLAIMS], INTRODUCTION
    found = [Found(experiment, results, batch, n) for batch, n in finished]
    p_values = tests(found)
    draw(found, pictures)
    body = [
        INTRODUCTION,
        pictures.image("rates", "Loss over the learning rate, a panel for each number of replicas"),
        pictures.image("pairs", "Loss over the pairs that were seen"),
        markdown(
            ["pairs of a replica", "N", "steps", "rule", "rate", "test loss", "p", "near"],
            [row for own in found for row in rows(own, p_values, own is first_of(found, own))],
        ),
        "The median rank of the second word among the neighbours of the first, and of the first "
        "among those of the second, of 2999:",
        named(found),
        "Orthogonality of the replicas' gradients after a quarter of one replica's training at its "
        f"best rate (1: all are orthogonal): {', '.join(map(orthogonality, found))}.",
        *filter(None, map(limits, found)),
    ]
    left = [
        f"N = {n} with {batch} pairs each"
        for batch, numbers in experiment.batches
        for n in numbers
        if (batch, n) not in finished
    ]
    if left:
        body.append(f"Not played to the end, for time: {', '.join(left)}.")
    said = ["<br>".join(map(matching, found)), "<br>".join(beside(own, p_values) for own in found)]
    verdicts = [(claim, SOURCE, text) for claim, text in zip(CLAIMS, said, strict=True)]
    return verdicts, "\n\n".join(body)


def first_of(found, own):
    """Return the first of a batch."""
    return next(other for other in found if other.batch == own.batch)


def rows(own, p_values, with_alone):
    """Return the rows of the table."""
    lines = [("one replica", ONE, own.k_alone)] if with_alone else []
    for name, rule, k in lines + own.compared:
        replicas = 1 if rule == ONE else own.replicas
        key = own.batch, own.replicas, name.removeprefix("Adasum, ").removesuffix(" rate")
        steps = own.experiment.pairs // (own.batch * replicas)
        p = p_text(p_values[key]) if rule == "adasum" else ""
        numbers = [f"{own.rate(k):g}", loss_text(own.losses(rule, k)), p]
        yield [own.batch, replicas, steps, name, *numbers, with_range(own.near(rule, k), 2)]


def named(found):
    """Return the table of the pairs that were named."""
    from experiments.word2vec.text import NAMED

    header = ["pairs of a replica", "N", "rule", *("/".join(pair) for pair in NAMED)]
    lines = []
    for own in found:
        chosen = [("one replica", ONE, own.k_alone)] if own is first_of(found, own) else []
        for name, rule, k in chosen + own.compared[2:]:
            medians = np.median(own.named(rule, k), axis=0)
            texts = [f"{there:.0f}, {back:.0f}" for there, back in medians]
            lines.append([own.batch, 1 if rule == ONE else own.replicas, name, *texts])
    return markdown(header, lines)


def orthogonality(own):
    """Say how orthogonal the gradients are."""
    cases = own.experiment.measured(own.batch, own.replicas, own.k_alone)
    overall = statistics.mean(own.results[case]["overall"] for case in cases)
    return f"{overall:.3f} on {where(own)}"


def limits(own):
    """Name the rules whose best rate is an edge of the widest grid."""
    names = [NAMES[setting["rule"]] for setting in own.grid.limited]
    if not names:
        return ""
    return f"Best at an edge of the widest grid on {own.replicas}: {', '.join(names)}."


def matching(own):
    """Say whether Adasum matches one replica: at its rate, and tuned."""
    alone = own.losses(ONE, own.k_alone)
    same, tuned = own.k_alone, own.best("adasum")
    word = "not confirmed"
    if own.matches("adasum", tuned):
        word = "confirmed" if own.matches("adasum", same) else "confirmed with a tuned rate"
    texts = [f"one {statistics.median(alone):.3f}"]
    for name, k in (("Adasum at its rate", same), ("tuned", tuned)):
        losses = own.losses("adasum", k)
        texts.append(f"{name} {loss_text(losses).split(' ')[0]}")
    near = ", ".join(
        f"{statistics.median(own.near(rule, k)):.2f}"
        for rule, k in ((ONE, own.k_alone), ("adasum", same), ("adasum", tuned))
    )
    return f"**{word}** on {where(own)}: loss {', '.join(texts)}; near {near}"


def where(own):
    """Return the number of replicas and the batch in words."""
    return f"{own.replicas}, {own.batch} pairs each"


def beside(own, p_values):
    """Say whether a tuned mean matches, too, and which of the two is better."""
    k_mean, k_own = own.best("mean"), own.best("adasum")
    mean, adasum = own.losses("mean", k_mean), own.losses("adasum", k_own)
    p = p_values[own.batch, own.replicas, "tuned"]
    said = "no difference shown"
    if p < SIGNIFICANT:
        said = "Adasum is better" if np.median(adasum) < np.median(mean) else "the mean is better"
    does = "matches one, too" if own.matches("mean", k_mean) else "does not match one"
    numbers = f"{loss_text(adasum).split(' ')[0]} to {loss_text(mean).split(' ')[0]}"
    return f"on {where(own)}: the mean **{does}**; {said} (loss {numbers}, p = {p_text(p)})"


def draw(found, pictures):
    """Draw the loss over the rates, and over the pairs at the best rates."""
    with pictures.drawn("rates", 1, len(found), size=(3.6, 2.9), sharey=True) as (figure, axes):
        for axis, own in zip(axes[0], found, strict=True):
            for setting in [*own.alone.settings, *own.grid.settings]:
                curve(axis, own, own.alone if setting["rule"] == ONE else own.grid, setting)
            axis.set_xscale("log", base=2)
            ticks = [own.rate(k) for k in own.grid.exponents][::2]
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_title(f"N = {own.replicas}, {own.batch} pairs each")
            axis.set_xlabel("learning rate")
        axes[0][0].set_ylabel("validation loss (lower is better)")
        axes[0][0].set_ylim(2.5, HIGHEST + 0.1)
        legend(figure, axes)
    with pictures.drawn("pairs", 1, len(found), size=(3.6, 2.9), sharey=True) as (figure, axes):
        for axis, own in zip(axes[0], found, strict=True):
            for rule in (ONE, *RULES):
                k = own.k_alone if rule == ONE else own.best(rule)
                runs = [run for run in own.runs(rule, k) if None not in run["losses"]]
                if not runs:
                    continue
                seen = np.array(runs[0]["steps"]) / runs[0]["steps"][-1]
                losses = list(zip(*(run["losses"] for run in runs), strict=True))
                style = {"color": COLOURS[rule], "label": NAMES[rule]} | LINES[rule]
                median_and_range(axis, seen, losses, **style)
            axis.set_title(f"N = {own.replicas}, {own.batch} pairs each")
            axis.set_xlabel("share of the pairs, each at its best rate")
        axes[0][0].set_ylabel("test loss (lower is better)")
        legend(figure, axes)


def curve(axes, own, grid, setting):
    """Draw the median loss of a rule over the rates; a cross at the top where it diverges."""
    rule, points, crosses = setting["rule"], [], []
    for k in grid.exponents:
        (score_of,) = grid.median(own.results, setting, k)
        (points if score_of > -DIVERGED else crosses).append((own.rate(k), -score_of))
    style = {"color": COLOURS[rule], "marker": MARKERS[rule], "label": NAMES[rule]}
    if rule == ONE:  # below the others, which may hide it
        style |= {"lw": 5, "ms": 10, "alpha": 0.5}
    axes.plot(*zip(*points, strict=True), **style)
    if crosses:
        x = [rate for rate, _ in crosses]
        marks = {"color": COLOURS[rule], "marker": CROSSES[rule], "ls": "", "ms": 7}
        axes.plot(x, [HIGHEST] * len(x), label=f"{NAMES[rule]} diverges", **marks)
