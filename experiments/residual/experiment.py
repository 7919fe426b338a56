"""A residual network on a large global batch: which rules reach a target, and when."""

import dataclasses

from experiments.classification import Classification, Problem, verdicts
from experiments.experiment import Claim, Verdict
from experiments.figures import NAMES
from experiments.search import Search

SOURCE = "Maleki et al., the authors' slides, ResNet"
EPOCHS = 12

PROBLEMS = (
    Problem("digits", "momentum", "decay", EPOCHS),
    Problem("mnist1d", "momentum", "decay", EPOCHS, batch=8, replicas=(8,), seeds=(100, 101)),
    Problem("digits", "adam", "decay", EPOCHS, exponents=(-4, -3, -2, -1), seeds=(100, 101)),
)


@dataclasses.dataclass(frozen=True)
class ResidualExperiment(Classification):
    """Epochs to a target on a residual network.

    Attributes:
        blocks: of each of the two stages.
    """

    blocks: int = 2

    name = "residual"
    title = "Residual network with Momentum"

    def model_of(self, name):
        """Return the network for a data set: 11,066 weights on images, 24,618 on signals."""
        from experiments.models.resnet import ResNet

        if name == "digits":
            return ResNet((8, 8, 1), (3, 3), (8, 16), self.blocks)
        return ResNet(blocks=self.blocks)

    def small(self):
        """Return it with two blocks, without Adasum of gradients, which the CNN has."""
        small = super().small()
        few = (dataclasses.replace(small.problems[0], rules=("mean", "adasum of steps")),)
        return dataclasses.replace(small, problems=few, blocks=1)

    def verdicts(self, found):
        """Return the claim with the epochs that each rule takes, on every problem."""
        claim = "On a large batch, Adasum reaches a target that the mean never reaches"
        return [Claim(claim, SOURCE, [verdict for own in found for verdict in reached(own)])]


def reached(found):
    """Return for each number of replicas who reaches the target, and when.

    The verdict is on the form of Adasum that the validation split prefers. Where the target is too
    high for all, the epochs to the mean's final accuracy say as much: the mean needs all of them.
    """
    texts = []
    for n in found.grids:
        form = found.chosen(n)
        of_mean = verdicts.median_of(found, n, "mean", found.best(n, "mean"))
        of_form = verdicts.median_of(found, n, form, found.best(n, form))
        epochs, to_mean = (
            {rule: epochs_to(found, n, rule, target) for rule in found.problem.rules}
            for target in (found.target, of_mean)
        )
        word = word_of(epochs["mean"], epochs[form])
        better = verdicts.WORDS[found.is_better(n, form, tuned=True)]
        numbers = {
            "replicas": str(n),
            "epochs to the target": f"{found.target:.3f}: {said_of(epochs)}",
            "epochs to the mean's last accuracy": f"{of_mean:.3f}: {said_of(to_mean)}",
            "last accuracy": f"{NAMES[form]} {of_form:.3f}, mean {of_mean:.3f} ({better})",
        }
        texts.append(Verdict(word, verdicts.training_of(found.problem), numbers))
    return texts


def epochs_to(found, replicas, rule, target):
    """Return the median number of epochs to a target at the best rate, None for never."""
    k = found.best(replicas, rule)
    steps = found.steps_to_target(replicas, rule, k, target)
    whole = max(result["steps"][-1] for result in found.finals(replicas, rule, k))
    return steps and steps / whole * found.problem.epochs


def said_of(epochs):
    """Return the epochs of each rule in words."""
    return ", ".join(
        f"{NAMES[rule]} {'never' if own is None else f'{own:.1f}'}" for rule, own in epochs.items()
    )


def word_of(mean, adasum):
    """Return the verdict on the epochs of both, None for never."""
    if adasum is None:
        return "unconfirmed" if mean is None else "refuted"
    return "confirmed" if mean is None else "unconfirmed"


EXPERIMENT = ResidualExperiment(
    problems=PROBLEMS,
    replicas=(16, 32),
    search=Search(
        base=0.01,
        exponents=(-1, 0, 1, 2),
        seeds=tuple(range(100, 105)),
        final_seeds=tuple(range(8)),
    ),
)
