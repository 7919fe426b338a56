"""A residual network on a large global batch: which rules reach a target, and when."""

import dataclasses

from experiments.classification import Classification, Problem
from experiments.comparison import p_text
from experiments.figures import NAMES
from experiments.search import Search

SOURCE = "Maleki et al., MLSys 2021, slides and summary"
EPOCHS = 12

PROBLEMS = (
    Problem("mnist1d", "momentum", "decay", EPOCHS),
    Problem("mnist1d", "adam", "decay", EPOCHS),
)

INTRODUCTION = """\
A residual network of four blocks on MNIST-1D, batch 4 on each replica, warm-up and linear decay.
Layer normalization stands in the place of batch normalization: the simulation has no moving
averages. *Published*: ResNet-50 on ImageNet, batch 16K on 64 GPUs, reaches 74.9 % in 69 epochs with
Adasum, and never in 90 with the mean; Momentum-SGD and Adam scale to 64K. Columns as for the
two-layer CNN."""


@dataclasses.dataclass(frozen=True)
class ResidualExperiment(Classification):
    """Epochs to a target on a residual network.

    Attributes:
        blocks: of each of the two stages.
    """

    blocks: int = 2

    name = "residual"
    title = "Residual network with Momentum and Adam"

    def model_of(self, name):
        """Return the network."""
        from experiments.models.resnet import ResNet

        return ResNet(blocks=self.blocks)

    def small(self):
        """Return it with two blocks, without Adasum of gradients, which the CNN has."""
        small = super().small()
        few = (dataclasses.replace(small.problems[0], rules=("mean", "adasum of steps")),)
        return dataclasses.replace(small, problems=few, blocks=1)

    def verdicts(self, found):
        """Return the claim with the epochs that each rule takes, on every problem."""
        said = "; ".join(f"{own.problem.title}: {epochs(own)}" for own in found)
        claim = "Adasum reaches a target on a large batch that the mean never reaches"
        return [(claim, SOURCE, said or "not played yet")]


def epochs(found):
    """Return the epochs to the target, of each rule and number of replicas, and p."""
    texts = []
    for n in found.grids:
        tests, said = found.tests(tuned=True), []
        for rule in found.problem.rules:
            k = found.best(n, rule)
            steps = found.steps_to_target(n, rule, k)
            whole = found.finals(n, rule, k)[0]["steps"][-1]
            word = f"{steps / whole * found.problem.epochs:.1f}" if steps else "never"
            p = "" if rule == "mean" else f" (accuracy p = {p_text(tests[n, rule])})"
            said.append(f"{NAMES[rule]} {word}{p}")
        texts.append(f"N = {n}, epochs to {found.target:.3f}: {', '.join(said)}")
    return "; ".join(texts)


EXPERIMENT = ResidualExperiment(
    problems=PROBLEMS,
    replicas=(16, 64),
    search=Search(base=0.01, exponents=(-2, -1, 0, 1, 2)),
    introduction=INTRODUCTION,
)
