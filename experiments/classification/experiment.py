"""Accuracies on 1 to N replicas: which learning rates work, and how well.

Each problem is a data set, an optimizer, a schedule and a number of epochs. On one replica its
best rate is found first. Then, for each number of replicas, the rules are searched on one grid that
holds this rate, and compared twice: at the rate of one replica, and each at its own best.
"""

import dataclasses

from experiments import data, schedules
from experiments.classification import figures, tables
from experiments.experiment import Experiment, Report
from experiments.search import Search

BATCH = 4  # rows of each replica
WARMUP = 0.1
EVALUATIONS = 20
ONE = "one replica"
RULES = ("mean", "adasum", "adasum of steps")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task.

    Attributes:
        data: a function of `experiments.data`.
        optimizer: one of `simulation.updates.UPDATES`.
        schedule: "decay", with warm-up, or "constant".
        epochs: how often the training split is seen.
        rules: those that are compared.
    """

    data: str
    optimizer: str
    schedule: str
    epochs: int
    rules: tuple[str, ...] = RULES

    def setting(self, replicas, rule):
        """Return a case without rate, seed and split."""
        own = {"data": self.data, "optimizer": self.optimizer, "schedule": self.schedule}
        return own | {"epochs": self.epochs, "replicas": replicas, "rule": rule}

    @property
    def title(self):
        """In words."""
        names = {"digits": "digits", "mnist1d": "MNIST-1D"}
        optimizers = {"momentum": "Momentum 0.9", "sgd": "SGD", "adam": "Adam"}
        how = {"decay": "warm-up and linear decay to 0", "constant": "constant rate"}
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return f"{names[self.data]}, {epochs}, {optimizers[self.optimizer]}, {how[self.schedule]}"

    @property
    def slug(self):
        """In the names of files."""
        return f"{self.data}-{self.optimizer}-{self.schedule}-{self.epochs}"


def score(result):
    """Return what is compared in a search: accuracy, then the loss."""
    loss = result["loss"]
    return result["accuracy"], -1e9 if loss is None else -loss


@dataclasses.dataclass(frozen=True)
class Classification(Experiment):
    """A comparison of rules by accuracy.

    Attributes:
        problems: what is trained.
        replicas: N, besides 1.
        search: the grid.
        introduction: what its section begins with.
    """

    problems: tuple[Problem, ...]
    replicas: tuple[int, ...]
    search: Search
    introduction: str

    @property
    def packages(self):
        """What its data and its figures need."""
        return "scipy", "matplotlib", *{data.PACKAGES[own.data] for own in self.problems}

    def small(self):
        """Return it on the first problem, for an epoch, with two rates and two seeds."""
        search = Search(0.02, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        problems = (dataclasses.replace(self.problems[0], epochs=1),)
        return dataclasses.replace(self, problems=problems, replicas=(8,), search=search)

    def model_of(self, name):
        """Return the model for a data set."""
        raise NotImplementedError

    def verdicts(self, found):
        """Return what a `Report` has of them.

        Args:
            found: a `tables.Found` of each problem that is finished.
        """
        raise NotImplementedError

    # ---- what is played -------------------------------------------------------------------------

    def alone(self, results, problem):
        """Return the grid of one replica."""
        return self.search.grid(results, [problem.setting(1, ONE)], score)

    def together(self, results, problem, replicas, k_alone):
        """Return the grid of all rules, with the rate of one replica in it."""
        settings = [problem.setting(replicas, rule) for rule in problem.rules]
        return self.search.grid(results, settings, score, also=(k_alone,))

    def plan(self, results):
        """Return the searches, and what follows from them."""
        cases = []
        for problem in self.problems:
            alone = self.alone(results, problem)
            cases += alone.cases()
            if not alone.is_complete:
                return cases
            (setting,) = alone.settings
            k_alone = alone.best(results, setting)
            cases += alone.runs(setting, k_alone, "test")
            for replicas in sorted(self.replicas, reverse=True):  # the claims are about many
                grid = self.together(results, problem, replicas, k_alone)
                cases += grid.cases()
                if not grid.is_complete:
                    return cases
                for own in grid.settings:
                    for k in sorted({k_alone, grid.best(results, own)}):
                        cases += grid.runs(own, k, "test")
        return cases

    def play(self, case):
        """Train once; measured on the split of the case."""
        from experiments.simulation import training

        splits = getattr(data, case["data"])()
        rule, of_steps = training.parted(case["rule"])
        played = training.training(
            self.model_of(case["data"]), case["optimizer"], rule, case["replicas"], BATCH, of_steps
        )
        steps = case["epochs"] * (len(splits.train[1]) // (BATCH * case["replicas"]))
        if case["schedule"] == "decay":
            rates = schedules.warmup_and_decay(case["rate"], steps, WARMUP)
        else:
            rates = schedules.constant(case["rate"], steps)
        curves = played.play(
            splits.train,
            getattr(splits, case["split"]),
            steps=steps,
            rates=rates,
            seed=case["seed"],
            evaluations=EVALUATIONS,
        )
        return {
            "accuracy": curves["accuracy"][-1],
            "loss": curves["loss"][-1],
            "steps": curves["step"],
            "accuracies": curves["accuracy"],
        }

    # ---- what is said of it ---------------------------------------------------------------------

    def report(self, results, pictures):
        """Return tables and figures of what is finished."""
        found, missing = [], []
        for problem in self.problems:
            finished = [n for n in self.replicas if self.is_finished(results, problem, n)]
            left = [str(n) for n in self.replicas if n not in finished]
            if left:
                missing.append(f"{problem.title}, on {', '.join(left)}")
            if finished:
                found.append(tables.Found(self, results, problem, finished))
        body = [self.introduction]
        for own in found:
            figures.rates(own, pictures)
            figures.replicas(own, pictures)
            body.append(tables.section(own, pictures))
        if missing:
            body.append(f"Not played yet: {'; '.join(missing)}.")
        return Report(self.verdicts(found), "\n\n".join(body))

    def is_finished(self, results, problem, replicas):
        """Whether all runs of a problem on so many replicas are there."""
        own = dataclasses.replace(self, problems=(problem,), replicas=(replicas,))
        return all(case in results for case in own.plan(results))
