"""Orthogonality of the replicas' gradients over a training, per layer and overall.

`‖adasum(g_1 … g_N)‖² / Σ ‖g_i‖²`: 1 where all gradients are orthogonal, 1/N where all are the same.
It is measured on gradients of fresh batches at the weights of a training, which it leaves alone.
"""

import dataclasses
import functools
import statistics

import numpy as np

from experiments import data
from experiments.comparison import with_range
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.figures import COLUMNS, GREY, legend, median_and_range
from experiments.orthogonality.tasks import TASKS, Task
from experiments.page import markdown

BATCHES = 8  # that a measurement is the mean of
MEASUREMENTS = 20
# Of the overall curve, and of layers, none of which is as red.
OVERALL = "#d1481f"
OF_LAYERS = ("#2a8fd0", "#3aa675", "#9b6dd6", "#b8962e", "#cf62a0", GREY)
SOURCE = "Maleki et al., the authors' slides, orthogonality"


@dataclasses.dataclass(frozen=True)
class OrthogonalityExperiment(Experiment):
    """Orthogonality during training.

    Attributes:
        tasks: what is trained.
        seeds: one training each.
    """

    tasks: tuple[Task, ...] = TASKS
    seeds: tuple[int, ...] = tuple(range(5))

    name = "orthogonality"
    title = "Orthogonality of gradients over a training"

    @property
    def packages(self):
        """The packages that its data and figures need."""
        return "matplotlib", *(data.PACKAGES[task.data] for task in self.tasks)

    def small(self):
        """Return it on digits, with one seed."""
        few = dataclasses.replace(self.tasks[0], rate=0.02, replicas=(4,), epochs=1)
        return dataclasses.replace(self, tasks=(few,), seeds=(0,))

    def cases(self, task):
        """Return the cases of a task."""
        return [task.case(n, seed) for n in task.replicas for seed in self.seeds]

    def stages(self, results):
        """Return the trainings of each task."""
        return self._planned.values()

    @functools.cached_property
    def _planned(self):
        return {task.data: self.cases(task) for task in self.tasks}

    def run(self, case):
        """Train, and measure at equal distances, before each part of the steps."""
        (task,) = (own for own in self.tasks if own.data == case["data"])
        trained, splits = task.trained(case["replicas"]), task.splits
        steps = task.steps(case["replicas"])
        begun, means, accuracies = trained.train_and_look(
            splits,
            trained.orthogonality,
            np.random.default_rng([case["seed"], 2]),
            BATCHES,
            steps=steps,
            rates=task.rates(case),
            seed=case["seed"],
            evaluations=MEASUREMENTS,
        )
        layers = [[mean[index] for _, index in task.layers] for mean in means]
        measured = {"step": begun, "layers": layers, "overall": [mean[-1] for mean in means]}
        return measured | {"steps": steps, "accuracies": accuracies}

    def report(self, results, pictures):
        """Return a table and a figure for each task."""
        body, verdicts = [], []
        for task in self.tasks:
            self.draw(results, task, pictures)
            rows, told = self.rows(results, task)
            header = ["N", "1/N", "initial weights", "first quarter", "last quarter"]
            header.append("runs in which it grows")
            text = f"Orthogonality over the training, overall and by layer, {task.title}"
            body += [f"### Orthogonality on {task.title}", pictures.image(task.data, text)]
            body += [markdown(header, rows)]
            verdicts.append(told)
        grown, parallel = zip(*verdicts, strict=True)
        claims = [
            Claim("Gradients become more orthogonal during training", SOURCE, grown),
            Claim("Gradients start out parallel", SOURCE, parallel),
        ]
        return Report(claims, "\n\n".join(body))

    def found(self, results, task, replicas):
        """Return the results on so many replicas."""
        return [results[case] for case in self._planned[task.data] if case["replicas"] == replicas]

    def rows(self, results, task):
        """Return the rows of a table, and the verdicts on both claims."""
        rows, grown, medians = [], 0, []
        for n in task.replicas:
            found = [run["overall"] for run in self.found(results, task, n)]
            quarter = max(1, len(found[0]) // 4)
            first = [own[0] for own in found]
            early = [statistics.mean(own[:quarter]) for own in found]
            late = [statistics.mean(own[-quarter:]) for own in found]
            grows = sum(end > begin for begin, end in zip(early, late, strict=True))
            grown += grows
            medians.append([statistics.median(own) for own in (first, early, late)])
            numbers = map(with_range, (first, early, late))
            rows.append([n, f"{1 / n:.3f}", *numbers, f"{grows} of {len(found)}"])
        first, early, late = (
            f"{min(own):.2f} to {max(own):.2f}" for own in zip(*medians, strict=True)
        )
        runs = len(rows) * len(self.seeds)
        word = "confirmed" if grown == runs else "unconfirmed"
        numbers = {"runs": f"{grown} of {runs}"}
        numbers |= {"in the first quarter": early, "in the last quarter": late}
        at_start = {"at the initial weights": first}
        return rows, (
            Verdict(word, task.title, numbers),
            Verdict(start(medians, task.replicas), task.title, at_start),
        )

    def draw(self, results, task, pictures):
        """Draw a panel for each N: overall with its range, and each layer."""
        panels = len(task.replicas)
        with pictures.drawn(task.data, panels, sharey=True) as (figure, axes):
            for own, n in zip(axes, task.replicas, strict=True):
                found = self.found(results, task, n)
                x = [step / found[0]["steps"] * task.length for step in found[0]["step"]]
                for index, ((layer, _), colour) in enumerate(
                    zip(task.layers, OF_LAYERS, strict=False)
                ):
                    layers = np.median(
                        [[at[index] for at in run["layers"]] for run in found], axis=0
                    )
                    own.plot(x, layers, lw=1, color=colour, label=layer)
                overall = list(zip(*(run["overall"] for run in found), strict=True))
                median_and_range(own, x, overall, color=OVERALL, lw=2.5, label="overall")
                own.axhline(1 / n, color=GREY, ls=":", label="1/N: all the same")
                own.set_title(f"N = {n}")
                own.set_xlabel(task.unit)
                own.set_xlim(0, task.length)
            for own in axes[::COLUMNS]:
                own.set_ylabel("orthogonality (1: orthogonal)")
            axes[0].set_ylim(0, 1.02)
            legend(figure, axes)


def start(medians, replicas):
    """Return the verdict on the initial weights: where the medians are between 1/N and 1."""
    pairs = zip(medians, replicas, strict=True)
    farthest = max((own[0] - 1 / n) / (1 - 1 / n) for own, n in pairs)
    if farthest < 0.1:
        return "confirmed"
    return "partly" if farthest < 0.5 else "unconfirmed"  # partly: nearer to 1/N than to 1


EXPERIMENT = OrthogonalityExperiment()
