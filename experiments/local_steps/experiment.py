"""How much accuracy is lost if the replicas combine only after every k-th step.

Compares Adasum of the weight changes, as `DeltaAdasum` combines them, with their mean (local SGD),
each with and without the outer optimizer of DiLoCo (arXiv 2311.08105), Nesterov's momentum of the
combined change. The inner optimizer is Adam.
"""

import dataclasses
import statistics

from experiments import data, schedules
from experiments.classification.experiment import score
from experiments.classification.problem import TITLES, WARMUP
from experiments.comparison import holm, p_text, paired_p, sign, with_range
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.figures import COLOURS, doubling_axis, legend, median_and_range
from experiments.page import markdown
from experiments.search import Search

METHODS = {  # rule, and whether there is an outer optimizer
    "mean": ("mean", False),
    "Adasum": ("adasum", False),
    "mean, outer (DiLoCo)": ("mean", True),
    "Adasum, outer": ("adasum", True),
}
REPLICAS, BATCH = 8, 4
EVALUATIONS = 20


@dataclasses.dataclass(frozen=True)
class LocalStepsExperiment(Experiment):
    """A search for each number of local steps and each method.

    Attributes:
        datasets: for each function of `experiments.data` the number of epochs.
        local_steps: k.
        search: the grid.
    """

    datasets: tuple[tuple[str, int], ...]
    local_steps: tuple[int, ...]
    search: Search

    name = "local_steps"
    title = "Local steps and an outer optimizer"

    @property
    def packages(self):
        """The packages that its data and figures need."""
        return "scipy", "matplotlib", *(data.PACKAGES[name] for name, _ in self.datasets)

    def small(self):
        """Return a small version: one k, one epoch, two learning rates."""
        search = Search(0.002, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        own = {"datasets": (("digits", 1),), "local_steps": (4,), "search": search}
        return dataclasses.replace(self, **own)

    def grid(self, results, dataset, epochs, local_steps):
        """Return the grid of all methods with the same k."""
        settings = [
            {
                "data": dataset,
                "epochs": epochs,
                "replicas": REPLICAS,
                "local_steps": local_steps,
                "method": method,
            }
            for method in METHODS
        ]
        return self.search.grid(results, settings, score)

    def stages(self, results):
        """Yield the searches, and the runs at the best rates."""
        for dataset, epochs in self.datasets:
            for local_steps in self.local_steps:
                grid = self.grid(results, dataset, epochs, local_steps)
                yield grid.cases()
                for setting in grid.settings:
                    yield grid.runs(setting, grid.best(results, setting), "test")

    def run(self, case):
        """Train once; measured on the split of the case."""
        from experiments.cnn.experiment import EXPERIMENT as CNN
        from experiments.simulation.local_steps import local_training

        splits = getattr(data, case["data"])()
        rule, outer = METHODS[case["method"]]
        trained = local_training(
            CNN.model_of(case["data"]),
            "adam",
            rule,
            case["replicas"],
            BATCH,
            case["local_steps"],
            outer,
        )
        steps = case["epochs"] * (len(splits.train[1]) // (BATCH * case["replicas"]))
        curves = trained.train(
            splits.train,
            getattr(splits, case["split"]),
            steps=steps,
            rates=schedules.warmup_and_decay(case["rate"], steps, WARMUP),
            seed=case["seed"],
            evaluations=EVALUATIONS,
        )
        return {
            "accuracy": curves["accuracy"][-1],
            "loss": curves["loss"][-1],
            "steps": curves["step"],
            "accuracies": curves["accuracy"],
        }

    def report(self, results, pictures):
        """Return a table and a figure for each data set that is finished."""
        body, of_outer, of_diloco = [], [], []
        for dataset, epochs in self.datasets:
            found = {
                k: Finals(self.grid(results, dataset, epochs, k), results) for k in self.local_steps
            }
            title = f"{TITLES[dataset]}, {epochs} epoch{'s' * (epochs > 1)}"
            draw(found, dataset, pictures)
            rows = [row for k, of_k in found.items() for row in of_k.rows(k)]
            header = ["k", "method", "best learning rate", "accuracy", "p against the mean"]
            text = f"Accuracy of each method over the number of local steps, {TITLES[dataset]}"
            body += [f"### {title}", pictures.image(dataset, text), markdown(header, rows)]
            of_outer.append(compared(found, title, "Adasum, outer", "Adasum"))
            of_diloco.append(compared(found, title, "Adasum", "mean, outer (DiLoCo)"))
        claims = [
            Claim(
                "Adasum with an outer optimizer is better than Adasum without one",
                "ours",
                of_outer,
            ),
            Claim(
                "Adasum of the weight changes is better than DiLoCo with its published settings",
                "ours",
                of_diloco,
            ),
        ]
        return Report(claims, "\n\n".join(body))


class Finals:
    """The accuracies of all methods with the same k, each at its best rate, by seed.

    Attributes:
        rates: the best learning rate of each method.
        accuracies: a list for each method.
    """

    def __init__(self, grid, results):
        best = {own["method"]: grid.best(results, own) for own in grid.settings}
        self.rates = {method: grid.search.rate(exponent) for method, exponent in best.items()}
        self.accuracies = {
            own["method"]: [
                results[case]["accuracy"] for case in grid.runs(own, best[own["method"]], "test")
            ]
            for own in grid.settings
        }

    def rows(self, k):
        """Return the rows of the table."""
        mean, *others = self.accuracies
        values = [paired_p(self.accuracies[own], self.accuracies[mean]) for own in others]
        p = {mean: "", **dict(zip(others, map(p_text, holm(values)), strict=True))}
        return [
            [k, method, f"{self.rates[method]:g}", with_range(own), p[method]]
            for method, own in self.accuracies.items()
        ]


def compared(found, title, method, other):
    """Return the verdict: for how many k a method is better than another."""
    pairs = [[own.accuracies[name] for name in (method, other)] for own in found.values()]
    p = holm([paired_p(*pair) for pair in pairs])
    signs = [sign(each, *pair) for each, pair in zip(p, pairs, strict=True)]
    better, worse = signs.count(1), signs.count(-1)
    word = "confirmed" if better == len(signs) else "unconfirmed" if not (better or worse) else ""
    word = word or ("refuted" if not better else "partly" if not worse else "mixed")
    named = {
        f"k = {k}": "{:.3f}, {:.3f}".format(*map(statistics.median, pair))
        + f" (p = {p_text(each)})"
        for k, each, pair in zip(found, p, pairs, strict=True)
    }
    return Verdict(word, title, named)


def draw(found, dataset, pictures):
    """Draw the accuracies of each method over k."""
    with pictures.drawn(dataset, size=(5.0, 3.2)) as (figure, axes):
        (own,) = axes
        for method, (rule, outer) in METHODS.items():
            y = [of_k.accuracies[method] for of_k in found.values()]
            style = {"color": COLOURS[rule], "ls": "--" if outer else "-"}
            median_and_range(own, list(found), y, label=method, **style)
        doubling_axis(own, list(found), "local steps between two combinations, k")
        own.set_ylabel("accuracy (higher is better)")
        legend(figure, axes)


EXPERIMENT = LocalStepsExperiment(
    datasets=(("digits", 12),),
    local_steps=(1, 4, 16, 64),
    search=Search(base=0.002, exponents=(-2, -1, 0, 1, 2)),
)
