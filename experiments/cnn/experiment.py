"""A CNN of two convolutions on 1 to 32 replicas: which rates work, and how well."""

import statistics

from experiments.classification import Classification, Problem
from experiments.figures import NAMES
from experiments.search import Search

SOURCE = "Maleki et al., MLSys 2021, the slides on MNIST"
LOST = 0.05  # of accuracy, where a rule is said to fail

PROBLEMS = (
    Problem("digits", "momentum", "decay", 6),
    Problem("digits", "momentum", "decay", 2),
    # Adasum of plain SGD's steps is Adasum of its gradients.
    Problem("digits", "sgd", "constant", 6, ("mean", "adasum")),
    Problem("mnist1d", "momentum", "decay", 6),
    Problem("mnist1d", "momentum", "decay", 2),
)

INTRODUCTION = """\
The CNN of `examples/train_digits.py` (two convolutions, two dense layers), batch 4 on each replica.
*Published*, without a table: a CNN of two layers on MNIST, 2 epochs, batch 32 on each GPU, 99.3 %
sequentially; Horovod's default fails at 16 GPUs, Adasum still works with 32; with tuned rates for
both Adasum converges much better on 16 and 32. Accuracies are on the test split, of ten seeds, as
median (lowest to highest). *Same rate* is the best rate of one replica; *tuned* is each rule's own
best on a common grid of factors of two, by the validation split and three other seeds. p is of
Wilcoxon's paired test against the mean with the same seeds, corrected by Holm's method for the
tests of a column. The target is one replica's accuracy less 0.02; the steps to it are at the best
rate, a dash where less than half of the seeds come there."""


class CNNExperiment(Classification):
    """Maleki et al.'s CNN."""

    name = "cnn"
    title = "Two-layer CNN, 1 to 32 replicas"
    packages = ("sklearn", "scipy", "matplotlib", "mnist1d")

    def model_of(self, name):
        """Return the CNN for a data set."""
        from experiments.models.cnn import CNN

        return CNN() if name == "digits" else CNN((1, 40, 1), (1, 5), (1, 2))

    def verdicts(self, found):
        """Return the two claims with what was found of them, on every problem."""
        return [
            ("at one replica's rate the mean fails at 16, Adasum works at 32", SOURCE, same(found)),
            ("with tuned rates Adasum is much better at 16 and 32", SOURCE, tuned(found)),
        ]


def same(found):
    """Say where each rule stays within `LOST` of one replica at its rate."""
    texts = []
    for own in found:
        alone = statistics.median(own.alone_accuracies)
        works = {}
        for rule in own.problem.rules:
            kept = [
                n
                for n in own.grids
                if statistics.median(own.accuracies(n, rule, own.k_alone)) >= alone - LOST
            ]
            works[rule] = f"{NAMES[rule]} up to {max(kept)}" if kept else f"{NAMES[rule]} nowhere"
        texts.append(f"{own.problem.title}: {', '.join(works.values())}")
    return f"within {LOST} of one replica: " + "; ".join(texts) if texts else "not played yet"


def tuned(found):
    """Say where Adasum is better than the mean, and where worse, each at its best rate."""
    texts = []
    words = {1: "better", 0: "no difference shown", -1: "worse"}
    for own in found:
        said = []
        for n in (n for n in own.grids if n >= 8):
            signs = {own.is_better(n, rule, tuned=True) for rule in own.problem.rules[1:]}
            said.append(f"{n}: {words[max(signs)]}")
        texts.append(f"{own.problem.title}: {', '.join(said)}")
    return "the better form of Adasum: " + "; ".join(texts) if texts else "not played yet"


EXPERIMENT = CNNExperiment(
    problems=PROBLEMS,
    replicas=(4, 8, 16, 32),
    search=Search(base=0.01, exponents=(-2, -1, 0, 1, 2)),
    introduction=INTRODUCTION,
)
