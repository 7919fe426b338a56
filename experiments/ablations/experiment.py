"""Variants of Adasum on the largest global batch of two claims, each at its best learning rate.

All variants of a study see the same global batches: the replicas times the rows of each are the
same, so that the mean is the same for any number of replicas.
"""

import dataclasses
import statistics

from experiments.ablations.studies import STUDIES, Study
from experiments.comparison import holm, p_text, paired_p, with_range
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.figures import COLOURS
from experiments.page import anchor_of, markdown

CLAIM = "At the same global batch, some form of Adasum is better than the mean"


@dataclasses.dataclass(frozen=True)
class AblationExperiment(Experiment):
    """Studies of variants.

    Attributes:
        studies: one for each main experiment.
    """

    studies: tuple[Study, ...] = STUDIES

    name = "ablations"
    title = "Ablations"

    @property
    def packages(self):
        """The packages that the main experiments need."""
        return tuple(
            dict.fromkeys(name for own in self.studies for name in own.main_experiment.packages)
        )

    def small(self):
        """Return it on the first study with three variants."""
        return dataclasses.replace(self, studies=(self.studies[0].small(),))

    def plan(self, results):
        """Return the cases of the searches, and of the runs at the best learning rates."""
        cases = []
        for study in self.studies:
            grid = study.grid(results)
            cases += grid.cases()
            if not grid.is_complete:
                return cases
            for setting in grid.settings:
                cases += grid.runs(setting, grid.best(results, setting), "test")
        return cases

    def run(self, case):
        """Train once, as the main experiment does."""
        (study,) = (own for own in self.studies if own.has(case))
        return study.main_experiment.run(case)

    def report(self, results, pictures):
        """Return a table for each finished study."""
        body, said, left = [], [], []
        for study in self.studies:
            if not self.is_finished(results, studies=(study,)):
                left.append(study.title)
                continue
            rows, verdict = table_and_verdict(study, results)
            draw(study, results, pictures)
            header = [
                "variant",
                "replicas",
                "rows of each",
                "best learning rate",
                study.measure,
                "p",
            ]
            picture = pictures.image(study.name, f"{study.measure.capitalize()} of each variant")
            body += [f"### {study.title}", picture, markdown(header, rows)]
            if study.variants[0].rule == "mean":
                said.append(verdict)
        if left:
            body.append(f"Not run, for time: {'; '.join(left)}.")
        return Report([Claim(CLAIM, "ours", said)], "\n\n".join(body))


def values_of(study, results, grid):
    """Return the values of each variant on the test split, by seed."""
    return [
        [study.value(results[case]) for case in grid.runs(own, grid.best(results, own), "test")]
        for own in grid.settings
    ]


def table_and_verdict(study, results):
    """Return the rows of a study's table, and which variant is best.

    No verdict is passed: which variant is best is read from the test split.
    """
    grid = study.grid(results)
    values = values_of(study, results, grid)
    tests = ["", *map(p_text, holm([paired_p(own, values[0]) for own in values[1:]]))]
    rows = [
        [
            variant.name,
            variant.replicas,
            variant.batch,
            f"{study.search.rate(grid.best(results, setting)):g}",
            with_range(own),
            p,
        ]
        for variant, setting, own, p in zip(
            study.variants, grid.settings, values, tests, strict=True
        )
    ]
    medians = list(map(statistics.median, values))
    chosen = max(medians) if study.is_higher_better else min(medians)
    best = study.variants[medians.index(chosen)]
    name = f"{best.name}, {best.replicas} replicas with {best.batch} rows each: {chosen:.3f}"
    numbers = {"mean": f"{medians[0]:.3f}", "best variant": name}
    return rows, Verdict("open", f"[{study.title}](#{anchor_of(study.title)})", numbers)


def draw(study, results, pictures):
    """Draw the median and the range of each variant, one below the other."""
    values = values_of(study, results, study.grid(results))
    count = len(values)
    size = (5.4, 0.8 + 0.3 * count)
    with pictures.drawn(study.name, size=size) as (_, axes):
        (own,) = axes
        for place, (variant, found) in enumerate(zip(study.variants, values, strict=True)):
            colour = COLOURS.get(variant.rule.replace(" of the model", ""), COLOURS["adasum"])
            own.plot([min(found), max(found)], [place] * 2, color=colour, lw=2, alpha=0.5)
            own.plot(statistics.median(found), place, color=colour, marker="o", ms=6)
        names = [f"{own.name}, {own.replicas} × {own.batch}" for own in study.variants]
        own.set_yticks(range(count), names)
        own.set_ylim(count - 0.5, -0.5)
        better = "higher" if study.is_higher_better else "lower"
        own.set_xlabel(f"{study.measure} ({better} is better)\nmedian and range of the seeds")


EXPERIMENT = AblationExperiment()
