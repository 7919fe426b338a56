"""A CNN of two convolutions on 1 to 64 replicas: which rates work, and how well."""

import dataclasses
import statistics

from experiments.classification import Classification, Problem, verdicts
from experiments.classification.problem import WARMUP
from experiments.experiment import Claim, Verdict
from experiments.figures import NAMES
from experiments.search import Search

SOURCE = "Maleki et al., the authors' slides, MNIST"
LOST = 0.05  # of accuracy, where a rule is said to fail
MANY = 16  # replicas that the claims are about, and more: the mean fails here
MOST = 32  # and Adasum works here

FASHION_MNIST = Problem(
    "fashion_mnist",
    "momentum",
    "decay",
    2,
    batch=32,
    exponents=(0, 1, 2, 3),
    replicas=(4, 8, 16, 32, 64),
    warmup=0.17,
)
PROBLEMS = (
    Problem("digits", "momentum", "decay", 6),
    Problem("digits", "momentum", "decay", 2),
    # Adasum of plain SGD's steps is Adasum of its gradients.
    Problem("digits", "sgd", "constant", 6, ("mean", "adasum")),
    Problem("digits", "sgd", "constant", 18, ("mean", "adasum")),
    Problem("mnist1d", "momentum", "decay", 6),
    Problem("mnist1d", "momentum", "decay", 2),
    # As many images as MNIST, which the slides use; they warm up for 17 % of the steps.
    FASHION_MNIST,
    dataclasses.replace(
        FASHION_MNIST, epochs=8, rules=("mean", "adasum"), replicas=(32, 64), seeds=(100,)
    ),
    dataclasses.replace(
        FASHION_MNIST,
        optimizer="sgd",
        schedule="constant",
        rules=("mean", "adasum"),
        exponents=(2, 3, 4, 5),
        replicas=(32,),
        seeds=(100,),
        warmup=WARMUP,
    ),
    dataclasses.replace(
        FASHION_MNIST,
        optimizer="lamb",
        rules=("mean", "adasum of steps"),
        exponents=(-2, -1, 0, 1),
        replicas=(32,),
        seeds=(100,),
    ),
    # As large as CIFAR-10, and harder.
    dataclasses.replace(
        FASHION_MNIST,
        data="clothes_on_clutter",
        rules=("mean", "adasum"),
        replicas=(32,),
        seeds=(100,),
    ),
)


class CNNExperiment(Classification):
    """Maleki et al.'s CNN."""

    name = "cnn"
    title = "Two-layer CNN, 1 to 64 replicas"

    def model_of(self, name):
        """Return the CNN for a data set."""
        from experiments.models.cnn import CNN

        if name == "fashion_mnist":
            return CNN((28, 28, 1), (5, 5))
        if name == "clothes_on_clutter":
            return CNN((32, 32, 3), (5, 5))
        return CNN() if name == "digits" else CNN((1, 40, 1), (1, 5), (1, 2))

    def verdicts(self, found):
        """Return the two claims with their verdicts on every problem."""
        tuned = verdicts.tuned(found, MANY, "")
        return [
            Claim(
                "At one replica's learning rate, the mean fails on 16 replicas and Adasum works "
                "on 32",
                SOURCE,
                same(found),
            ),
            Claim(
                "With tuned learning rates, Adasum is much better than the mean on 16 and 32 "
                "replicas",
                SOURCE,
                tuned,
            ),
        ]


def same(found):
    """Return on how many replicas each rule stays within `LOST` of one replica, at its rate."""
    texts = []
    for own in found:
        accuracies = {
            rule: {n: own.accuracies(n, rule, own.k_alone) for n in own.grids}
            for rule in own.problem.rules
        }
        if own.problem.has_sum:
            accuracies["sum"] = {n: own.accuracies_of_sum(n) for n in own.grids}
        least = statistics.median(own.alone_accuracies) - LOST
        kept = {rule: lasting(by_replicas, least) for rule, by_replicas in accuracies.items()}
        best = max(n for rule, n in kept.items() if "adasum" in rule)
        word = "partly" if best > kept["mean"] else "unconfirmed"
        if kept["mean"] < MANY and best >= MOST:
            word = "confirmed"
        numbers = {
            NAMES[rule]: f"up to {n}" if n > 1 else f"not on {min(own.grids)}"
            for rule, n in kept.items()
        }
        texts.append(Verdict(word, verdicts.training_of(own.problem, ""), numbers))
    return texts


def lasting(accuracies, least):
    """Return the largest number of replicas whose median is not below `least`; 1 if none is."""
    enough = [n for n, values in accuracies.items() if statistics.median(values) >= least]
    return max(enough, default=1)


EXPERIMENT = CNNExperiment(
    problems=PROBLEMS,
    replicas=(4, 8, 16, 32),
    search=Search(base=0.01, exponents=(-2, -1, 0, 1, 2)),
)
