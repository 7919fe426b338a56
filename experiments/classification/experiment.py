"""Accuracies on 1 to N replicas: which learning rates work, and how well.

Each problem is a data set, an optimizer, a schedule and a number of epochs. On one replica its
best learning rate is searched first. Then, for each number of replicas, the rules are searched on
one grid that includes this learning rate, and compared twice: at the learning rate of one replica,
and each rule at its own best.
"""

import dataclasses

from experiments import data, schedules
from experiments.classification import figures, tables
from experiments.classification.problem import WARMUP, Problem, k_of_sum
from experiments.experiment import Experiment, Report
from experiments.results import Results
from experiments.search import Search

EVALUATIONS = 20
# Evaluating many rows takes long.
EVALUATIONS_OF_DATA = {"fashion_mnist": 10, "clothes_on_clutter": 10}
ONE = "one replica"


def score(result):
    """Return the score of a result in a search: the accuracy, then the loss."""
    loss = result["loss"]
    return result["accuracy"], -1e9 if loss is None else -loss


@dataclasses.dataclass(frozen=True)
class Classification(Experiment):
    """A comparison of rules by accuracy.

    Attributes:
        problems: what is trained.
        replicas: N, besides 1.
        search: the grid.
    """

    problems: tuple[Problem, ...]
    replicas: tuple[int, ...]
    search: Search

    @property
    def packages(self):
        """The packages that its data and figures need."""
        return "scipy", "matplotlib", *data.packages_of(own.data for own in self.problems)

    def small(self):
        """Return it on the first problem, for an epoch, on 4 and 8 replicas, with two rates."""
        search = Search(0.02, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        own = {"epochs": 1, "exponents": None, "replicas": None, "seeds": None}
        problems = (dataclasses.replace(self.problems[0], **own),)
        return dataclasses.replace(self, problems=problems, replicas=(4, 8), search=search)

    def model_of(self, name):
        """Return the model for a data set."""
        raise NotImplementedError

    def verdicts(self, found):
        """Return the claims with their verdicts.

        Args:
            found: a `tables.ProblemResults` of each problem.
        """
        raise NotImplementedError

    # ---- cases -----------------------------------------------------------------------------

    def alone(self, results, problem):
        """Return the grid of one replica."""
        return self.search_of(problem).grid(results, [problem.setting(1, ONE)], score)

    def best_rate_alone(self, **wanted):
        """Return the best rate of one replica for the first problem with some attributes."""
        results = Results(self.folder / "runs.jsonl")
        problem = next(own for own in self.problems if wanted.items() <= vars(own).items())
        alone = self.alone(results, problem)
        return self.search.rate(alone.best(results, alone.settings[0]))

    def together(self, results, problem, replicas, k_alone):
        """Return the grid of all rules, with the rate of one replica in it."""
        settings = [problem.setting(replicas, rule) for rule in problem.rules]
        return self.search_of(problem).grid(results, settings, score, also=(k_alone,))

    def search_of(self, problem):
        """Return the search with the problem's own grid and seeds, if it has them."""
        return dataclasses.replace(
            self.search,
            exponents=problem.exponents or self.search.exponents,
            seeds=problem.seeds or self.search.seeds,
        )

    def replicas_of(self, problem):
        """Return N of a problem, besides 1."""
        return problem.replicas or self.replicas

    def stages(self, results):
        """Yield the cases of the searches, and of the runs at the best learning rates."""
        for problem in self.problems:
            alone = self.alone(results, problem)
            yield alone.cases()
            (setting,) = alone.settings
            k_alone = alone.best(results, setting)
            yield alone.runs(setting, k_alone, "test")
            for replicas in sorted(self.replicas_of(problem), reverse=True):  # claims are of many
                grid = self.together(results, problem, replicas, k_alone)
                yield grid.cases()
                for own in grid.settings:
                    for k in sorted({k_alone, grid.best(results, own)}):
                        yield grid.runs(own, k, "test")
                if problem.has_sum:
                    k = k_of_sum(k_alone, replicas)
                    yield grid.runs(problem.setting(replicas, "mean"), k, "test")

    def run(self, case):
        """Train once; measured on the split of the case."""
        from experiments.simulation import training

        splits = getattr(data, case["data"])()
        rule, of_steps = training.split_rule_name(case["rule"])
        replicas, batch = case["replicas"], self.batch_of(case)
        trained = training.training(
            self.model_of(case["data"]), case["optimizer"], rule, replicas, batch, of_steps
        )
        steps = case["epochs"] * (len(splits.train[1]) // (batch * replicas))
        if case["schedule"] == "decay":
            rates = schedules.warmup_and_decay(case["rate"], steps, case.get("warmup", WARMUP))
        else:
            rates = schedules.constant(case["rate"], steps)
        curves = trained.train(
            splits.train,
            getattr(splits, case["split"]),
            steps=steps,
            rates=rates,
            seed=case["seed"],
            evaluations=EVALUATIONS_OF_DATA.get(case["data"], EVALUATIONS),
        )
        return {
            "accuracy": curves["accuracy"][-1],
            "loss": curves["loss"][-1],
            "steps": curves["step"],
            "accuracies": curves["accuracy"],
        }

    def batch_of(self, case):
        """Return the rows of each replica."""
        (batch,) = {own.batch for own in self.problems if own.data == case["data"]}
        return batch

    # ---- what is said of it ---------------------------------------------------------------------

    def report(self, results, pictures):
        """Return the tables and figures of all finished runs."""
        found = [tables.ProblemResults(self, results, problem) for problem in self.problems]
        body = []
        for own in found:
            figures.rates(own, pictures)
            if len(own.grids) > 1:
                figures.replicas(own, pictures)
            body.append(tables.section(own, pictures))
        return Report(self.verdicts(found), "\n\n".join(body))
