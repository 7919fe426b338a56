"""Draw README's picture, and write the numbers of README.md and docs, from committed runs.

The picture shows the two-layer CNN on Fashion-MNIST: its accuracy over the number of replicas, with
the learning rate of one device unchanged. `python -m experiments report` renews all of them.
"""

import statistics
import textwrap

from experiments.classification.tables import ProblemResults
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.cnn.experiment import FASHION_MNIST
from experiments.comparison import SIGNIFICANT
from experiments.figures import GREY, Figures, doubling_axis, legend, style_of
from experiments.page import IMAGES, ROOT, markdown, rewritten
from experiments.results import Results

README, CHOOSING = ROOT / "README.md", ROOT / "docs" / "choosing.md"
SHOWN = 8  # replicas, of the sentence below the picture
WIDTH = 116  # of the README


def write():
    """Draw the picture and rewrite the generated blocks."""
    results = Results(CNN.folder / "runs.jsonl")
    found = [ProblemResults(CNN, results, problem) for problem in CNN.problems]
    draw(shown(found), Figures(IMAGES.parent, "docs/images", "accuracy"))
    for file, text in texts(found).items():
        file.write_text(text)


def texts(found):
    """Return the documents with their generated blocks."""
    blocks = {
        README: {"accuracy": numbers(shown(found))},
        CHOOSING: {"comparison": comparison(found)},
    }
    return {file: rewritten(file.read_text(), parts) for file, parts in blocks.items()}


def shown(found):
    """Return the results that the picture shows."""
    (own,) = (own for own in found if own.problem == FASHION_MNIST)
    return own


def curves(found):
    """Return the curves: by label, the name of the colour, and accuracies of all seeds by N."""
    return {
        "Adasum, learning rate unchanged": (
            "adasum",
            {n: found.accuracies(n, "adasum", found.k_alone) for n in found.grids},
        ),
        "average, learning rate tuned": (
            "mean",
            {n: found.accuracies(n, "mean", found.best(n, "mean")) for n in found.grids},
        ),
        "average, learning rate unchanged": (
            "mean",
            {n: found.accuracies(n, "mean", found.k_alone) for n in found.grids},
        ),
        "average, linear scaling": ("sum", {n: found.accuracies_of_sum(n) for n in found.grids}),
    }


def comparison(found):
    """Count the comparisons in which Adasum of gradients is more accurate than averaging."""
    found = [own for own in found if "adasum" in own.problem.rules]
    same, tuned = (
        {
            n: [own.is_better(n, "adasum", tuned=tuned) for own in found if n in own.grids]
            for n in sorted({n for own in found for n in own.grids})
        }
        for tuned in (False, True)
    )
    total = sum(map(len, tuned.values()))
    header = ["replicas", *tuned]
    won = ["comparisons won", *(f"{own.count(1)} of {len(own)}" for own in tuned.values())]

    def count(found, sign):
        return sum(own.count(sign) for own in found.values())

    text = (
        f"In {total} comparisons on {len(found)} setups of small CNNs, Adasum of the gradients at "
        f"the single-device learning rate beat averaging at that rate {count(same, 1)} times "
        f"(p < {SIGNIFICANT}). With both tuned, Adasum won {count(tuned, 1)} of the {total} and "
        f"lost {count(tuned, -1)}; {count(tuned, 0)} showed no clear difference:"
    )
    return f"{textwrap.fill(text, WIDTH)}\n\n{markdown(header, [won])}"


def numbers(found):
    """Return the sentences below the picture."""
    adasum, tuned, same, _ = (
        statistics.median(values[SHOWN]) for _, values in curves(found).values()
    )
    text = (
        f"A CNN on Fashion-MNIST, simulated in one process; medians and quartiles of "
        f"{len(found.alone_accuracies)} seeds. With {SHOWN} replicas and an eighth of the steps, "
        f"Adasum reaches {adasum:.3f}. One device reaches "
        f"{statistics.median(found.alone_accuracies):.3f}; averaging "
        f"{same:.3f}, or {tuned:.3f} with a learning rate tuned for {SHOWN} replicas."
    )
    return textwrap.fill(text, WIDTH)


def draw(found, pictures):
    """Draw the accuracy over the number of replicas."""
    with pictures.drawn("replicas", 1, size=(5.4, 4)) as (figure, (axes,)):
        replicas = list(found.grids)
        for label, (name, values) in curves(found).items():
            style = style_of(name, label=label, ls="--" if "tuned" in label else "-")
            quartiles = [statistics.quantiles(values[n], n=4) for n in replicas]
            low, median, high = zip(*quartiles, strict=True)
            axes.plot(replicas, median, **style)
            axes.fill_between(replicas, low, high, color=style["color"], alpha=0.18, lw=0)
        alone = statistics.median(found.alone_accuracies)
        axes.axhline(alone, color=GREY, ls=":")
        axes.annotate("one device", (replicas[0], alone), (0, 4), textcoords="offset points")
        doubling_axis(axes, replicas, "replicas (N replicas take N times fewer steps)")
        axes.minorticks_off()
        axes.set_ylim(0, 1)
        axes.set_ylabel("test accuracy after 2 epochs")
        legend(figure, [axes])
