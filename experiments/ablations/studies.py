"""The claims for which variants are tested."""

import dataclasses

from experiments.classification import Problem
from experiments.classification.experiment import score as by_accuracy
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.experiment import Experiment
from experiments.search import Search, by_loss
from experiments.transformer.experiment import BATCH as SEQUENCES
from experiments.transformer.experiment import EXPERIMENT as TRANSFORMER

SIX_EPOCHS, TWO_EPOCHS, *_ = CNN.problems
NAMES = {
    "mean": "mean",
    "adasum": "Adasum",
    "adasum of the model": "Adasum of the model",
    "adasum in ring order": "Adasum in ring order",
    "adasum over 8 hosts of 3": "Adasum over 8 hosts of 3",
    "adasum over 4 hosts of 6": "Adasum over 4 hosts of 6",
    "adasum of steps": "Adasum of steps",
    "adasum of the model of steps": "Adasum of the model, of steps",
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A rule, and how the global batch is split.

    Attributes:
        rule: as cases have it.
        replicas: N.
        batch: rows of each.
    """

    rule: str
    replicas: int
    batch: int

    @property
    def name(self):
        """In words."""
        return NAMES[self.rule]


@dataclasses.dataclass(frozen=True)
class Study:
    """Variants of the training of a main experiment, which runs, scores and values them.

    Attributes:
        name: in the names of files.
        title: of the training, in words.
        main_experiment: the experiment, which runs it.
        search: its grid.
        variants: the baseline, then others.
    """

    name: str
    title: str
    main_experiment: Experiment
    search: Search
    variants: tuple[Variant, ...]

    measure = ""
    is_higher_better = True
    default_batch = 0  # of the main experiment's own cases, which do not have it

    def grid(self, results):
        """Return the grid of all variants."""
        settings = [self.setting(variant) for variant in self.variants]
        return self.search.grid(results, settings, self.score)

    def setting(self, variant):
        """Return a case without rate, seed and split, as the main experiment has it, if it does."""
        own = self.in_main_experiment(variant)
        return own if variant.batch == self.default_batch else own | {"batch": variant.batch}

    def has(self, case):
        """Whether a case is one of this study."""
        return any(self.setting(own).items() <= dict(case).items() for own in self.variants)

    def small(self):
        """Return it with three variants and two rates."""
        search = Search(0.02, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        return dataclasses.replace(self, search=search, variants=self.variants[:3])


@dataclasses.dataclass(frozen=True)
class OfCNN(Study):
    """The CNN on digits with Momentum.

    Attributes:
        problem: the problem of the main experiment.
    """

    problem: Problem = TWO_EPOCHS

    measure = "test accuracy"
    default_batch = 4

    def in_main_experiment(self, variant):
        """Return the case that the CNN has of it."""
        return self.problem.setting(variant.replicas, variant.rule)

    def score(self, result):
        """Return the score of a result in a search."""
        return by_accuracy(result)

    def value(self, result):
        """Return the value of a result that the table compares."""
        return result["accuracy"]


@dataclasses.dataclass(frozen=True)
class OfTransformer(Study):
    """The Transformer, after all steps.

    Attributes:
        optimizer: one of `simulation.updates.UPDATES`.
    """

    optimizer: str = "lamb"

    measure = "test loss"
    is_higher_better = False
    default_batch = SEQUENCES

    def in_main_experiment(self, variant):
        """Return the case that the Transformer has of it."""
        own = TRANSFORMER.setting(variant.replicas, variant.rule, 1)
        return own | {"optimizer": self.optimizer}

    def score(self, result):
        """Return the score of a result in a search."""
        return by_loss(result)

    def value(self, result):
        """Return the value of a result that the table compares."""
        return float("inf") if result["loss"] is None else result["loss"]


STUDIES = (
    OfCNN(
        "cnn",
        "CNN on digits, 2 epochs, Momentum, 128 rows in a step",
        CNN,
        CNN.search_of(TWO_EPOCHS),
        (
            *(Variant(rule, 32, 4) for rule in NAMES if "hosts" not in rule and "ring" not in rule),
            *(Variant("adasum", n, 128 // n) for n in (8, 128)),
            *(Variant("adasum of steps", n, 128 // n) for n in (8, 128)),
        ),
    ),
    OfTransformer(
        "transformer",
        "Transformer, LAMB, 64 sequences in a step",
        TRANSFORMER,
        TRANSFORMER.search,
        (
            Variant("mean", 32, 2),
            Variant("adasum of steps", 32, 2),
            Variant("adasum of the model of steps", 32, 2),
            Variant("adasum", 32, 2),
            Variant("adasum of steps", 8, 8),
        ),
    ),
    OfTransformer(
        "transformer-adam",
        "Transformer, Adam, 64 sequences in a step",
        TRANSFORMER,
        TRANSFORMER.search,
        tuple(Variant(rule, 32, 2) for rule in ("mean", "adasum of steps", "adasum")),
        "adam",
    ),
    OfTransformer(
        "transformer-decay",
        "Transformer, LAMB with weight decay 0.01, 64 sequences in a step",
        TRANSFORMER,
        TRANSFORMER.search,
        tuple(Variant(rule, 32, 2) for rule in ("mean", "adasum of steps", "adasum")),
        "lamb with weight decay",
    ),
    OfCNN(
        "cnn-hosts",
        "CNN on digits, 6 epochs, Momentum, trees over hosts, 24 replicas",
        CNN,
        CNN.search_of(SIX_EPOCHS),
        (
            Variant("adasum", 24, 4),
            Variant("adasum over 8 hosts of 3", 24, 4),
            Variant("adasum over 4 hosts of 6", 24, 4),
        ),
        SIX_EPOCHS,
    ),
    OfCNN(
        "cnn-ring",
        "CNN on digits, 6 epochs, Momentum, tree and ring, 32 replicas",
        CNN,
        CNN.search_of(SIX_EPOCHS),
        (Variant("adasum", 32, 4), Variant("adasum in ring order", 32, 4)),
        SIX_EPOCHS,
    ),
)
