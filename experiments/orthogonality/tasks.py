"""The trainings over which orthogonality is measured: the CNN's and the Transformer's."""

import dataclasses

from experiments import data, schedules
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.results import Results
from experiments.transformer.experiment import BATCH as SEQUENCES
from experiments.transformer.experiment import EXPERIMENT as TRANSFORMER

WARMUP = 0.1


@dataclasses.dataclass(frozen=True)
class Task:
    """A training on any number of replicas; it has its length, cases, steps and `Training`.

    Attributes:
        data: the name of its data set.
        title: in words.
        replicas: N.
        layers: for each that is drawn its name and the index of its kernel among the variables.
        unit: of the length of a training.
        rate: of all trainings. Defaults to `None`: the best, as the search of its experiment has
            found it.
    """

    data: str
    title: str
    replicas: tuple[int, ...]
    layers: tuple[tuple[str, int], ...]
    unit: str
    rate: float | None = None

    @property
    def splits(self):
        """Its data."""
        return getattr(data, self.data)()

    def rates(self, case):
        """Return the learning rate of each step."""
        return schedules.warmup_and_decay(case["rate"], self.steps(case["replicas"]), WARMUP)


@dataclasses.dataclass(frozen=True)
class OfCNN(Task):
    """The CNN with Momentum and Adasum of gradients, at the best rate of one replica.

    Attributes:
        epochs: of each training.
    """

    epochs: int = 6

    batch = 4

    @property
    def length(self):
        """In epochs."""
        return self.epochs

    def case(self, replicas, seed):
        """Return a case."""
        rate = self.rate or CNN.best_rate_alone(data=self.data, epochs=self.epochs)
        own = {"data": self.data, "rate": rate, "epochs": self.epochs}
        return own | {"replicas": replicas, "seed": seed}

    def trained(self, replicas):
        """Return the `Training`."""
        from experiments.simulation.training import training

        return training(CNN.model_of(self.data), "momentum", "adasum", replicas, self.batch)

    def steps(self, replicas):
        """Return how many steps a training has."""
        return self.epochs * (len(self.splits.train[1]) // (self.batch * replicas))


@dataclasses.dataclass(frozen=True)
class OfTransformer(Task):
    """The Transformer with LAMB and Adasum of its steps, at the best rate of that."""

    rule = "adasum of steps"
    batch = SEQUENCES

    @property
    def length(self):
        """In thousands of sequences."""
        return TRANSFORMER.sequences / 1000

    def case(self, replicas, seed):
        """Return a case."""
        own = {"data": self.data, "rate": self._rate(replicas), "sequences": TRANSFORMER.sequences}
        return own | {"replicas": replicas, "seed": seed}

    def _rate(self, replicas):
        found = Results(TRANSFORMER.folder / "runs.jsonl")
        grid = TRANSFORMER.grid(found, replicas)
        best = grid.best(found, TRANSFORMER.setting(replicas, self.rule, 1))
        return TRANSFORMER.search.rate(best)

    def trained(self, replicas):
        """Return the `Training`."""
        from experiments.models.transformer import Transformer
        from experiments.simulation.training import training

        model = Transformer(len(data.ALPHABET))
        return training(model, "lamb", "adasum", replicas, self.batch, of_steps=True)

    def steps(self, replicas):
        """Return how many steps a training has."""
        return round(TRANSFORMER.sequences / (self.batch * replicas))


LAYERS = (("convolution 1", 0), ("convolution 2", 2), ("dense 1", 4), ("dense 2", 6))
# Of an attention the projection of its output, of the dense layers of a block the first.
BLOCKS = (
    ("embedding", 0),
    ("attention 1", 10),
    ("dense 1", 14),
    ("attention 2", 26),
    ("dense 2", 30),
    ("output", 36),
)
TASKS = (
    OfCNN("digits", "digits", (4, 8, 16, 32), LAYERS, "epochs"),
    OfCNN("mnist1d", "MNIST-1D", (4, 8, 16, 32), LAYERS, "epochs"),
    OfTransformer("shakespeare", "Shakespeare", (8, 32), BLOCKS, "thousands of sequences"),
)
