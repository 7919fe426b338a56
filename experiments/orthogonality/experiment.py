"""Orthogonality of the replicas' gradients over a training, per layer and overall.

`‖adasum(g_1 … g_N)‖² / Σ ‖g_i‖²`: 1 where all gradients are orthogonal, 1/N where all are the same.
It is measured on gradients of fresh batches at the weights of a training, which it leaves alone.
"""

import dataclasses
import statistics

import numpy as np

from experiments import data, schedules
from experiments.comparison import with_range
from experiments.experiment import Experiment, Report
from experiments.figures import GREY
from experiments.page import markdown

BATCH = 4
BATCHES = 8  # that a measurement is the mean of
MEASUREMENTS = 20
WARMUP = 0.1
SOURCE = "Maleki et al., MLSys 2021, the slide on orthogonality"

INTRODUCTION = """\
Orthogonality is ‖adasum(g₁ … g_N)‖² / Σ‖gᵢ‖²: 1 where all gradients are orthogonal, 1/N where all
are the same. *Published*, without numbers: gradients start out all parallel, and become more
orthogonal later in the training. Here: the CNN on digits and on MNIST-1D, batch 4 on
each replica, trained with Adasum, Momentum 0.9, warm-up and linear decay; each measurement is the
mean over eight batches. Medians (lowest to highest) of five seeds."""

LAYERS = ("convolution 1", "convolution 2", "dense 1", "dense 2")


@dataclasses.dataclass(frozen=True)
class OrthogonalityExperiment(Experiment):
    """Orthogonality on the CNN.

    Attributes:
        tasks: data and learning rate, the best of one replica.
        replicas: N.
        epochs: of each training.
        seeds: one training each.
    """

    tasks: tuple[tuple[str, float], ...] = (("digits", 0.02), ("mnist1d", 0.02))
    replicas: tuple[int, ...] = (4, 8, 16, 32)
    epochs: int = 6
    seeds: tuple[int, ...] = tuple(range(5))

    name = "orthogonality"
    title = "Orthogonality of gradients over a training"
    packages = ("sklearn", "matplotlib", "mnist1d")

    def small(self):
        """Return it on digits, with one seed."""
        tasks = self.tasks[:1]
        return dataclasses.replace(self, tasks=tasks, replicas=(4,), epochs=1, seeds=(0,))

    def plan(self, results):
        """Return every training; nothing depends on the results."""
        return [
            self.case(task, replicas, seed)
            for task in self.tasks
            for replicas in self.replicas
            for seed in self.seeds
        ]

    def case(self, task, replicas, seed):
        """Return a case."""
        name, rate = task
        own = {"data": name, "rate": rate, "epochs": self.epochs}
        return own | {"replicas": replicas, "seed": seed}

    def play(self, case):
        """Train, and measure at equal distances, before each part of the steps."""
        from experiments.cnn.experiment import model_of
        from experiments.simulation.training import training

        splits = getattr(data, case["data"])()
        trained = training(model_of(case["data"]), "momentum", "adasum", case["replicas"], BATCH)
        rows = case["replicas"] * BATCH
        steps = case["epochs"] * (len(splits.train[1]) // rows)
        random = np.random.default_rng([case["seed"], 2])
        x, y = splits.train
        measured = {"step": [], "layers": [], "overall": []}

        def look(step, state):
            values = []
            for _ in range(BATCHES):
                chosen = random.choice(len(y), rows, replace=False)
                values.append(trained.orthogonality(state[0], x[chosen], y[chosen]).numpy())
            mean = np.mean(values, axis=0).round(4)
            measured["step"].append(int(step))
            measured["layers"].append([float(own) for own in mean[:-1:2]])  # kernels, not biases
            measured["overall"].append(float(mean[-1]))

        curves = trained.play(
            splits.train,
            splits.validation,
            steps=steps,
            rates=schedules.warmup_and_decay(case["rate"], steps, WARMUP),
            seed=case["seed"],
            evaluations=MEASUREMENTS,
            look=look,
        )
        return measured | {"steps": steps, "accuracies": curves["accuracy"]}

    def report(self, results, pictures):
        """Return a table and a figure for each task."""
        body, ranges = [INTRODUCTION], []
        for task in self.tasks:
            if any(self.case(task, n, s) not in results for n in self.replicas for s in self.seeds):
                continue
            self.draw(results, task, pictures)
            rows, told = self.rows(results, task)
            header = ["N", "1/N", "at the beginning", "at a tenth", "at the end"]
            header.append("trainings in which it grows")
            text = f"Orthogonality over the training, overall and by layer, {TITLES[task[0]]}"
            body += [f"### {TITLES[task[0]]}", pictures.image(task[0], text)]
            body += [markdown(header, rows)]
            ranges.append(f"{TITLES[task[0]]}: {told}")
        claim = "gradients start out parallel and become more orthogonal"
        said = "; ".join(ranges) if ranges else "not played yet"
        return Report([(claim, SOURCE, said)], "\n\n".join(body))

    def rows(self, results, task):
        """Return the rows of a table, and what they say in words."""
        rows, grown = [], []
        for n in self.replicas:
            found = [results[self.case(task, n, seed)] for seed in self.seeds]
            at = [
                [own["overall"][i] for own in found] for i in (0, len(found[0]["step"]) // 10, -1)
            ]
            grows = sum(last > first for first, last in zip(at[0], at[-1], strict=True))
            grown.append(grows)
            rows.append([n, f"{1 / n:.3f}", *map(with_range, at), f"{grows} of {len(found)}"])
        first, last = (
            [
                statistics.median(
                    results[self.case(task, n, seed)]["overall"][index] for seed in self.seeds
                )
                for n in self.replicas
            ]
            for index in (0, -1)
        )
        share = f"{sum(grown)} of {len(grown) * len(self.seeds)} trainings"
        return rows, (
            f"it grows in {share}, from {min(first):.2f}–{max(first):.2f} to "
            f"{min(last):.2f}–{max(last):.2f} for N = {self.replicas[0]} to {self.replicas[-1]}"
        )

    def draw(self, results, task, pictures):
        """Draw a panel for each N: overall with its range, and each layer."""
        columns = len(self.replicas)
        with pictures.drawn(task[0], 1, columns, size=(3.0, 2.9), sharey=True) as (figure, axes):
            for own, n in zip(axes[0], self.replicas, strict=True):
                found = [results[self.case(task, n, seed)] for seed in self.seeds]
                x = [step / found[0]["steps"] * self.epochs for step in found[0]["step"]]
                for index, layer in enumerate(LAYERS):
                    layers = np.median(
                        [[at[index] for at in run["layers"]] for run in found], axis=0
                    )
                    own.plot(x, layers, lw=1, label=layer)
                overall = np.array([run["overall"] for run in found])
                median = np.median(overall, axis=0)
                own.plot(x, median, lw=2.5, color="#c2410c", label="overall")
                own.fill_between(
                    x, overall.min(0), overall.max(0), color="#c2410c", alpha=0.2, lw=0
                )
                own.axhline(1 / n, color=GREY, ls=":", label="1/N: all the same")
                own.set_title(f"N = {n}")
                own.set_xlabel("epochs")
            axes[0][0].set_ylabel("orthogonality (1: orthogonal)")
            axes[0][0].set_ylim(0, 1.02)
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))


TITLES = {"digits": "digits", "mnist1d": "MNIST-1D"}
EXPERIMENT = OrthogonalityExperiment()
