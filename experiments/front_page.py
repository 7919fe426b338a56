"""Draw README's picture, and write the numbers of README.md and choosing.md, from committed runs.

The picture shows the two-layer CNN on Fashion-MNIST with 32 replicas: its accuracy over the steps
and over the learning rate. `python -m experiments report` renews all of them.
"""

import statistics
import textwrap

from experiments.classification.figures import curve
from experiments.classification.tables import ProblemResults
from experiments.cnn import EXPERIMENT as CNN
from experiments.cnn.experiment import FASHION_MNIST
from experiments.comparison import SIGNIFICANT, p_text, with_range
from experiments.figures import COLOURS, Figures, legend, median_and_range
from experiments.page import IMAGES, ROOT, rewritten
from experiments.results import Results

README, CHOOSING = ROOT / "README.md", ROOT / "docs" / "choosing.md"
REPLICAS = 32
RULES = ("mean", "adasum")
WIDTH = 116  # of the README


def trainings():
    """Return the results of all finished trainings of this CNN."""
    results = Results(CNN.folder / "runs.jsonl")
    finished = ((own, CNN.finished(results, own)) for own in CNN.problems)
    return [ProblemResults(CNN, results, own, replicas) for own, replicas in finished if replicas]


def write():
    """Draw the picture and rewrite the generated blocks."""
    found = trainings()
    draw(shown(found), Figures(IMAGES.parent, "docs/images", "accuracy"))
    for file, text in texts(found).items():
        file.write_text(text)


def texts(found):
    """Return the documents with their generated blocks."""
    compared = comparison(found)
    blocks = {
        README: {"accuracy": f"{numbers(shown(found))} {compared}"},
        CHOOSING: {"comparison": compared},
    }
    return {
        file: rewritten(
            file.read_text(), {name: textwrap.fill(text, WIDTH) for name, text in parts.items()}
        )
        for file, parts in blocks.items()
    }


def shown(found):
    """Return the results that the picture shows."""
    (own,) = (own for own in found if own.problem == FASHION_MNIST)
    return own


def comparison(found):
    """Count the comparisons in which Adasum of gradients is more accurate than the mean."""
    found = [own for own in found if "adasum" in own.problem.rules]
    same, tuned = (
        {
            n: [own.is_better(n, "adasum", tuned=tuned) for own in found if n in own.grids]
            for n in sorted({n for own in found for n in own.grids})
        }
        for tuned in (False, True)
    )
    total = sum(map(len, tuned.values()))
    by_replicas = ", ".join(f"{own.count(1)} of {len(own)} on {n}" for n, own in tuned.items())

    def count(found, sign):
        return sum(own.count(sign) for own in found.values())

    return (
        f"We compared Adasum with the mean {total} times, in {len(found)} setups of a "
        f"CNN. At one replica's best learning rate, Adasum is more accurate "
        f"(p < {SIGNIFICANT}) {count(same, 1)} times. If both are tuned, it is more accurate "
        f"{count(tuned, 1)} times ({by_replicas} replicas) and less accurate "
        f"{count(tuned, -1)} times."
    )


def numbers(found):
    """Return the accuracies in words."""
    mean, adasum = (found.best(REPLICAS, rule) for rule in RULES)

    def accuracy(rule, k):
        return with_range(found.accuracies(REPLICAS, rule, k))

    runs_alone = found.finals(1, None, found.k_alone)
    steps = found.finals(REPLICAS, "mean", mean)[0]["steps"][-1]
    p = p_text(found.tests(tuned=True)[REPLICAS, "adasum"])
    return (
        f"Median accuracy of {len(runs_alone)} seeds (lowest to highest) after {steps} steps: at "
        f"the best learning rate of one replica, {found.rate(found.k_alone):g}, Adasum reaches "
        f"{accuracy('adasum', found.k_alone)} and the mean {accuracy('mean', found.k_alone)}. "
        f"If each rule is tuned on other seeds, Adasum reaches "
        f"{accuracy('adasum', adasum)} at {found.rate(adasum):g}, and the mean "
        f"{accuracy('mean', mean)} at {found.rate(mean):g} (Wilcoxon: p = {p}). One replica "
        f"reaches {statistics.median(found.alone_accuracies):.3f} after "
        f"{runs_alone[0]['steps'][-1]:,} steps."
    )


def draw(found, pictures):
    """Draw the accuracy over the steps, and over the learning rate."""
    alone = "one replica"
    with pictures.drawn("steps-and-rates", 2, size=(3.3, 3.3), sharey=True) as (figure, axes):
        steps, rates = axes
        for rule, k, line in (
            *((rule, found.best(REPLICAS, rule), "-") for rule in RULES),
            ("mean", found.k_alone, "--"),
        ):
            runs = found.finals(REPLICAS, rule, k)
            values = list(zip(*(run["accuracies"] for run in runs), strict=True))
            style = {"color": COLOURS[rule], "ls": line}
            if line == "--":
                style["label"] = "mean at one replica's best rate"
            median_and_range(steps, runs[0]["steps"], values, **style)
        steps.axhline(
            statistics.median(found.alone_accuracies),
            color=COLOURS[alone],
            ls="-.",
            label=f"one replica after {REPLICAS} times as many steps",
        )
        steps.set_title("each rule at its best rate (test split)")
        steps.set_xlabel(f"steps on {REPLICAS} replicas")
        steps.set_ylabel("accuracy (higher is better)")
        grid = found.grids[REPLICAS]
        curve(rates, found, found.alone, found.alone.settings[0])
        for setting in grid.settings:
            if setting["rule"] in RULES:
                curve(rates, found, grid, setting)
        rates.set_xscale("log", base=2)
        ticks = [found.rate(k) for k in grid.exponents][::2]
        rates.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        rates.set_title("all rates that were tried (validation split)")
        rates.set_xlabel("learning rate")
        rates.set_ylim(0, 1.02)
        legend(figure, axes)
