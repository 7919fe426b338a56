"""The results of AdaScale's runs as tables and pictures."""

import functools
import statistics

import numpy as np

from experiments.adascale.experiment import (
    AS,
    BATCH,
    IDENTITY,
    LSW,
    LSW_PLUS,
    METHODS,
    phases_of,
)
from experiments.comparison import SIGNIFICANT, edges, holm, p_text, paired_p, with_range
from experiments.experiment import Claim, Verdict
from experiments.figures import GREY, doubling_axis, legend, median_and_range
from experiments.page import markdown

SOURCE = "Johnson et al., ICML 2020, Table 2"
CLAIMS = (
    "AdaScale keeps the accuracy of S = 1 for nearly all S",
    "Linear scaling (LSW) loses accuracy as S grows",
    "If S changes during training, AdaScale keeps its accuracy and linear scaling does not",
)
COLOURS = {AS: "#2a8fd0", LSW: "#e07b39", LSW_PLUS: "#3aa675"}
MARKERS = {AS: "o", LSW: "s", LSW_PLUS: "^"}
OF_SCALES = ("#58b4d1", "#2a7fd0", "#8a63d2", "#e07b39", "#c0542d")

GUESSING = 0.2


class ProblemResults:
    """The finished runs of a task."""

    def __init__(self, results, task):
        self.results, self.task = results, task
        self.rate = task.search.rate
        grid = task.alone(results)
        (self.alone,) = grid.settings
        self.k_alone = grid.best(results, self.alone)
        self.of_scales = {}
        for scale in task.scales:
            settings = task.settings(results, scale, self.k_alone)
            self.of_scales[scale] = {own["method"]: own for own in settings}
        for own in task.elastic_settings():
            self.of_scales.setdefault(own["scale"], {})[own["method"]] = own

    def runs(self, setting, k=None):
        """Return the results on the test split, at the rate of S = 1 by default."""
        k = self.k_alone if k is None else k
        return [self.results[case] for case in self.task.tests(setting, k)]

    def accuracies(self, setting, k=None):
        """Return the accuracies by seed; 0 where a training diverged."""
        return [run["accuracy"] or 0.0 for run in self.runs(setting, k)]

    def median(self, setting, name):
        """Return a median; None where more than half have diverged."""
        values = [run[name] for run in self.runs(setting)]
        median = statistics.median([float("inf") if own is None else own for own in values])
        return None if median == float("inf") else median

    @functools.cached_property
    def p_values(self):
        """By (scale, method) p against S = 1; not corrected, which is the harder test to pass."""
        alone = self.accuracies(self.alone)
        return {
            (scale, method): paired_p(self.accuracies(own[method]), alone)
            for method in METHODS
            for scale, own in self.of_scales.items()
            if method in own
        }

    def retuned(self, scale):
        """Return the grid of all methods at one S, and the accuracies of each at its best rate."""
        grid = self.task.retuned(self.results, scale, self.k_alone)
        values = {
            own["method"]: self.accuracies(own, grid.best(self.results, own))
            for own in grid.settings
        }
        return grid, values

    def worse(self):
        """Return the (scale, method) that are worse than S = 1."""
        alone = statistics.median(self.accuracies(self.alone))
        return {
            (scale, method)
            for (scale, method), p in self.p_values.items()
            if p < SIGNIFICANT
            and statistics.median(self.accuracies(self.of_scales[scale][method])) < alone
        }


def report(experiment, results, pictures):
    """Return verdicts and body."""
    found = [ProblemResults(results, task) for task in experiment.tasks]
    draw(found, pictures)
    body = [
        pictures.image("scales", "Accuracy over S, for each method"),
        pictures.image("gains", "Gain over the training, for each S"),
    ]
    for own in found:
        title = own.task.title
        body.append(f"### {title[:1].upper()}{title[1:]}, {total(own)}")
        body.append(table(own))
        body += [varied(own, scale) for scale in own.task.varied]
        body += [retuned(own, scale) for scale in own.task.tuned]
    said = zip(*map(verdicts, found), strict=True)
    claims = [
        Claim(text, SOURCE, list(filter(None, own))) for text, own in zip(CLAIMS, said, strict=True)
    ]
    return claims, "\n\n".join(body)


def total(found):
    """Return T and the rate in words."""
    runs = found.runs(found.alone)
    rate = f"{found.rate(found.k_alone):g}"
    return f"T = {runs[0]['iterations']} steps at S = 1, learning rate {rate}"


def table(found):
    """Return the table of all S."""
    header = ["S", "batch", *(f"accuracy {method}" for method in METHODS)]
    header += [f"training loss {method}" for method in METHODS]
    header += ["iterations AS, LSW+", "iterations LSW"]
    loss = found.median(found.alone, "training loss")
    alone = with_range(found.accuracies(found.alone))
    count = found.runs(found.alone)[0]["iterations"]
    lines = [[1, BATCH, alone, "", "", f"{loss:.4f}", "", "", count, count]]
    worse = found.worse()
    for scale, own in found.of_scales.items():
        phases = phases_of(scale)
        name = scale if len(phases) == 1 else "elastic " + " → ".join(map(str, phases))
        batches = " → ".join(str(BATCH * phase) for phase in phases)
        line = [name, batches]
        for method in METHODS:
            mark = " **↓**" if (scale, method) in worse else ""
            line.append(accuracy_text(found, own[method]) + mark if method in own else "–")
        for method in METHODS:
            loss = found.median(own[method], "training loss") if method in own else None
            line.append("–" if loss is None else f"{loss:.4f}")
        line += [f"{found.median(own[method], 'iterations'):.0f}" for method in (AS, LSW)]
        lines.append(line)
    said = {method: [] for method in METHODS}
    for (_, method), p in found.p_values.items():
        said[method].append(p_text(p))
    texts = "; ".join(f"{method} {', '.join(own)}" for method, own in said.items())
    test = "p of Wilcoxon's paired test against S = 1, in the order of the rows"
    return f"{markdown(header, lines)}\n\n{test}: {texts}."


def accuracy_text(found, setting, k=None):
    """Return the median with the range, or that trainings have diverged."""
    values = found.accuracies(setting, k)
    text = with_range(values)
    return f"fails: {text}" if statistics.median(values) <= GUESSING else text


def varied(found, scale):
    """Return the table of AdaScale with another θ, and of the identity rule."""
    lines = []
    for own in (found.of_scales[scale][AS], *found.task.variants(scale)):
        name = "identity rule: the learning rate and the iterations of S = 1"
        if own["method"] != IDENTITY:
            name = f"AS, θ = {own.get('smoothing', max(1 - scale / 1000, 0)):g}"
            name += "" if "smoothing" in own else " (the default)"
        loss, count = (found.median(own, which) for which in ("training loss", "iterations"))
        lines.append([name, accuracy_text(found, own), "–" if loss is None else f"{loss:.4f}"])
        lines[-1].append("–" if count is None else f"{count:.0f}")
    header = [f"at S = {scale}", "accuracy", "training loss", "iterations"]
    return markdown(header, lines)


def retuned(found, scale):
    """Return the table of all methods, each tuned at one S, on the same grid."""
    grid, values = found.retuned(scale)
    others = [method for method in METHODS if method != AS]
    p_values = holm([paired_p(values[AS], values[method]) for method in others])
    said = dict(zip(others, p_values, strict=True))
    lines = []
    for own in grid.settings:
        method = own["method"]
        k = grid.best(found.results, own)
        counts = [run["iterations"] for run in found.runs(own, k)]
        p = p_text(said[method]) if method in said else ""
        count = f"{statistics.median(counts):.0f}"
        lines.append([method, f"{found.rate(k):g}", accuracy_text(found, own, k), p, count])
    limits = edges([own["method"] for own in grid.limited])
    limits = f"\n\n{limits}" if limits else ""
    header = ["method", "best base learning rate", "accuracy", "p against AS (Holm)", "iterations"]
    text = (
        f"For this table, we tuned the base learning rate of each method at S = {scale}. All "
        "methods use the same grid, the validation split and other seeds. LSW+ takes as many "
        "iterations as before:"
    )
    return f"{text}\n\n{markdown(header, lines)}{limits}"


def tuned_text(found, scale):
    """Return the accuracies of all methods retuned, with p of LSW+ against AS."""
    _, values = found.retuned(scale)
    said = ", ".join(f"{name} {statistics.median(own):.3f}" for name, own in values.items())
    _, p = holm([paired_p(values[AS], values[method]) for method in (LSW, LSW_PLUS)])
    return f"{said} (AS against LSW+: p = {p_text(p)})"


def verdicts(found):
    """Return the verdict on each claim, on one task; None for a claim that it does not test."""
    worse, name = found.worse(), found.task.title
    fixed = [scale for scale in found.of_scales if len(phases_of(scale)) == 1]
    elastic = [scale for scale in found.of_scales if scale not in fixed]

    def kept(scales, method):
        return [scale for scale in scales if (scale, method) not in worse]

    def lost(scale, method):
        setting = found.of_scales[scale][method]
        return statistics.median(found.accuracies(setting))

    alone = statistics.median(found.accuracies(found.alone))
    own, linear, more = (kept(fixed, method) for method in METHODS)
    word = "confirmed" if own == fixed else "partly" if own else "unconfirmed"
    last = ", ".join(f"{method} {lost(fixed[-1], method):.3f}" for method in METHODS)
    numbers = {"not worse than S = 1": f"AS {at(own)}; LSW {at(linear)}; LSW+ {at(more)}"}
    numbers |= {f"accuracy at S = {fixed[-1]}": f"{last} (S = 1: {alone:.3f})"}
    numbers |= {f"S = {scale}, retuned": tuned_text(found, scale) for scale in found.task.tuned}
    first = Verdict(word, name, numbers)
    numbers = {f"LSW at S = {scale}": f"{lost(scale, LSW):.3f}" for scale in fixed}
    second = Verdict("confirmed" if fixed[-1] not in linear else "unconfirmed", name, numbers)
    if not elastic:
        return first, second, None
    keeps, loses = len(kept(elastic, AS)), len(elastic) - len(kept(elastic, LSW))
    word = "unconfirmed"
    if keeps and loses:
        word = "confirmed" if keeps == loses == len(elastic) else "partly"
    numbers = {
        f"S = {' → '.join(map(str, phases_of(scale)))}": f"AS {lost(scale, AS):.3f}, "
        f"LSW {lost(scale, LSW):.3f}"
        for scale in elastic
    }
    return first, second, Verdict(word, name, numbers)


def at(scales):
    """Return at which S a method keeps the quality, in words."""
    return f"at {', '.join(map(str, scales))}" if scales else "at no S"


def draw(found, pictures):
    """Draw accuracies over S, and the gains over the training."""
    with pictures.drawn("scales", len(found), sharey=True) as (figure, axes):
        for axis, own in zip(axes, found, strict=True):
            scales = [scale for scale in own.of_scales if len(phases_of(scale)) == 1]
            for method in METHODS:
                values = [own.accuracies(own.of_scales[scale][method]) for scale in scales]
                style = {"color": COLOURS[method], "marker": MARKERS[method], "label": method}
                median_and_range(axis, scales, values, **style)
            alone = statistics.median(own.accuracies(own.alone))
            axis.axhline(alone, color=GREY, ls="--", label="S = 1")
            doubling_axis(axis, scales, "S, small batches in a step")
            axis.set_title(own.task.title)
        axes[0].set_ylabel("test accuracy (higher is better)")
        axes[0].set_ylim(0, 1.02)
        legend(figure, axes)
    with pictures.drawn("gains", len(found), sharey=True) as (figure, axes):
        for axis, own in zip(axes, found, strict=True):
            for colour, (scale, of_scale) in zip(OF_SCALES, own.of_scales.items(), strict=False):
                runs = [run for run in own.runs(of_scale[AS]) if run["accuracy"] is not None]
                if not runs:
                    continue
                count = min(len(run["gains"]) for run in runs)
                gains = list(zip(*(run["gains"][:count] for run in runs), strict=True))
                seen = np.arange(1, count + 1) / count
                phases = phases_of(scale)
                name = "S = " + " → ".join(map(str, phases))
                style = {"color": colour, "ls": "-" if len(phases) == 1 else "--"}
                median_and_range(axis, seen, gains, label=name, **style)
            axis.set_yscale("log", base=2)
            ticks = [2**power for power in range(7)]
            axis.set_yticks(ticks, list(map(str, ticks)))
            axis.set_title(own.task.title)
            axis.set_xlabel("scale-invariant step τ / T")
        axes[0].set_ylabel("gain ratio r (S: all is noise)")
        legend(figure, axes)
