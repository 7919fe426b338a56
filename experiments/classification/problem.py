"""The tasks of the classification experiments, and their measures."""

import dataclasses

RULES = ("mean", "adasum", "adasum of steps")
WARMUP = 0.1
TITLES = {
    "digits": "digits",
    "mnist1d": "MNIST-1D",
    "clicks": "clicks",
    "fashion_mnist": "Fashion-MNIST",
    "clothes_on_clutter": "Clothes on clutter",
}


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number by which trainings are compared, the larger the better.

    Attributes:
        name: in words.
        digits: that are shown.
        lost: how far the target is below one replica's.
        axis: from where to where it is drawn over the rates.
    """

    name: str
    digits: int
    lost: float
    axis: tuple[float, float]


ACCURACY = Measure("accuracy", 3, 0.02, (0, 1.02))
AUC = Measure("AUC", 4, 0.01, (0.48, 0.8))


def k_of_sum(k_alone, replicas):
    """Return k of N times the rate of one replica; there, the mean takes the steps of the sum."""
    if replicas.bit_count() != 1:
        raise ValueError(f"N must be a power of two. Received: {replicas}")
    return k_alone + replicas.bit_length() - 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task.

    Attributes:
        data: a function of `experiments.data`.
        optimizer: one of `simulation.updates.UPDATES`.
        schedule: "decay", with warm-up, or "constant".
        epochs: how often the training split is seen.
        rules: those that are compared.
        batch: rows of each replica.
        exponents: the grid at its beginning. Defaults to `None`: that of the experiment's search.
        replicas: N, besides 1. Defaults to `None`: those of the experiment.
        seeds: of the search. Defaults to `None`: those of the experiment's.
        warmup: the fraction of the steps in which the learning rate rises, with schedule "decay".
    """

    data: str
    optimizer: str
    schedule: str
    epochs: int
    rules: tuple[str, ...] = RULES
    batch: int = 4
    exponents: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    warmup: float = WARMUP

    def setting(self, replicas, rule):
        """Return a case without rate, seed and split."""
        own = {"data": self.data, "optimizer": self.optimizer, "schedule": self.schedule}
        own |= {"warmup": self.warmup} if self.warmup != WARMUP else {}
        return own | {"epochs": self.epochs, "replicas": replicas, "rule": rule}

    @property
    def has_sum(self):
        """Whether the sum takes the steps of the mean at N times the learning rate."""
        return self.optimizer in ("sgd", "momentum")

    @property
    def title(self):
        """In words."""
        optimizers = {"momentum": "Momentum 0.9", "sgd": "SGD", "adam": "Adam", "lamb": "LAMB"}
        how = {"decay": "warm-up and linear decay to 0", "constant": "constant learning rate"}
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return f"{TITLES[self.data]}, {epochs}, {optimizers[self.optimizer]}, {how[self.schedule]}"

    @property
    def measure(self):
        """The measure that is compared."""
        return AUC if self.data == "clicks" else ACCURACY

    @property
    def slug(self):
        """In the names of files."""
        return f"{self.data}-{self.optimizer}-{self.schedule}-{self.epochs}"
