"""A CNN of two convolutions on 1 to 32 replicas: which rates work, and how well."""

import statistics

from experiments.classification import Classification, Problem, verdicts
from experiments.figures import NAMES
from experiments.search import Search

SOURCE = "Maleki et al., MLSys 2021, the slides on MNIST"
LOST = 0.05  # of accuracy, where a rule is said to fail
MANY = 16  # replicas that the claims are about, and more: the mean fails here
MOST = 32  # and Adasum works here

PROBLEMS = (
    Problem("digits", "momentum", "decay", 6),
    Problem("digits", "momentum", "decay", 2),
    # Adasum of plain SGD's steps is Adasum of its gradients.
    Problem("digits", "sgd", "constant", 6, ("mean", "adasum")),
    Problem("digits", "sgd", "constant", 18, ("mean", "adasum")),
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
rate, a dash where less than half of the seeds come there. The verdicts on tuned rates are on the
form of Adasum, of gradients or of steps, that is better on the validation split. On digits for two
epochs a search with three seeds was seen to err ([ablations](#ablations)); one with five was not
played.

*Why, as we think.* At a rate that one replica can bear, a step of the mean is as long as one
replica's, and there are 1/N as many. A step of Adasum is longer as far as the gradients are
orthogonal, which they mostly are (next section): its best rate stays near that of one replica. The
mean can take a rate that is several times as large, which is as good, until the rate that it would
need is above what the first steps bear: then its curve ends before it has reached the height of
Adasum's. That is at 16 or 32 replicas on digits, where a tuned mean is as good with 4 and 8, and
from 4 on with six epochs of MNIST-1D, the harder task. More steps bring both nearer to one replica:
after 18 epochs on 32 replicas Adasum is as good as one, and a tuned mean is not. Where so few steps
are left that no rule learns the task, none is shown to be better."""


class CNNExperiment(Classification):
    """Maleki et al.'s CNN."""

    name = "cnn"
    title = "Two-layer CNN, 1 to 32 replicas"

    def model_of(self, name):
        """Return the CNN for a data set."""
        from experiments.models.cnn import CNN

        return CNN() if name == "digits" else CNN((1, 40, 1), (1, 5), (1, 2))

    def verdicts(self, found):
        """Return the two claims with what was found of them, on every problem."""
        tuned = verdicts.tuned(found, MANY)
        return [
            ("at one replica's rate the mean fails at 16, Adasum works at 32", SOURCE, same(found)),
            ("with tuned rates Adasum is much better at 16 and 32", SOURCE, tuned),
        ]


def same(found):
    """Say up to where each rule stays within `LOST` of one replica, at its rate."""
    texts = []
    for own in found:
        least = statistics.median(own.alone_accuracies) - LOST
        kept = {rule: lasting(own, rule, least) for rule in own.problem.rules}
        best = max(kept[rule] for rule in kept if rule != "mean")
        word = "confirmed in part" if best > kept["mean"] else "not confirmed"
        if kept["mean"] < MANY and best >= MOST:
            word = "confirmed"
        said = ", ".join(
            f"{NAMES[rule]} {f'up to {n}' if n > 1 else f'not on {min(own.grids)}'}"
            for rule, n in kept.items()
        )
        texts.append(f"**{word}** on {own.problem.title}: within {LOST} of one replica {said}")
    return "<br>".join(texts) or "not played yet"


def lasting(found, rule, least):
    """Return the largest number of replicas on which a rule has so much at one replica's rate."""
    enough = [n for n in found.grids if verdicts.median_of(found, n, rule, found.k_alone) >= least]
    return max(enough, default=1)


EXPERIMENT = CNNExperiment(
    problems=PROBLEMS,
    replicas=(4, 8, 16, 32),
    search=Search(base=0.01, exponents=(-2, -1, 0, 1, 2)),
    introduction=INTRODUCTION,
)
