"""Orthogonality of the replicas' gradients over a training, per layer and overall.

`‖adasum(g_1 … g_N)‖² / Σ ‖g_i‖²`: 1 where all gradients are orthogonal, 1/N where all are the same.
It is measured on gradients of fresh batches at the weights of a training, which it leaves alone.
"""

import dataclasses
import functools
import statistics

import numpy as np

from experiments import data, schedules
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.comparison import with_range
from experiments.experiment import Experiment, Report
from experiments.figures import GREY
from experiments.page import markdown
from experiments.results import Results

BATCH = 4
BATCHES = 8  # that a measurement is the mean of
MEASUREMENTS = 20
WARMUP = 0.1
SOURCE = "Maleki et al., MLSys 2021, the slide on orthogonality"

INTRODUCTION = """\
Orthogonality is ‖adasum(g₁ … g_N)‖² / Σ‖gᵢ‖²: 1 where all gradients are orthogonal, 1/N where all
are the same. *Published*, without numbers: gradients start out all parallel, and become more
orthogonal later in the training. Here: the CNN on digits and on MNIST-1D, batch 4 on
each replica, trained with Adasum, Momentum 0.9, warm-up and linear decay, at the best rate of one
replica; each measurement is the mean over eight batches. Medians (lowest to highest) of five
seeds, of the overall orthogonality; "it grows" where the mean of the last quarter of a training is
above that of the first.

*Why, as we think.* At random weights the gradients of different images point apart. They agree most
within the first epoch, while the network learns what all images have in common; what is left then
is particular to each batch. The published curves may begin after that, or be of batches so large
that noise does not hide the common part."""

LAYERS = ("convolution 1", "convolution 2", "dense 1", "dense 2")


@dataclasses.dataclass(frozen=True)
class OrthogonalityExperiment(Experiment):
    """Orthogonality on the CNN.

    Attributes:
        datasets: names of data sets.
        rate: of all trainings. Defaults to `None`: the best of one replica, as the CNN's search has
            found it; until then nothing is played.
        replicas: N.
        epochs: of each training.
        seeds: one training each.
    """

    datasets: tuple[str, ...] = ("digits", "mnist1d")
    rate: float | None = None
    replicas: tuple[int, ...] = (4, 8, 16, 32)
    epochs: int = 6
    seeds: tuple[int, ...] = tuple(range(5))

    name = "orthogonality"
    title = "Orthogonality of gradients over a training"

    @property
    def packages(self):
        """What its data and its figures need."""
        return "matplotlib", *(data.PACKAGES[dataset] for dataset in self.datasets)

    def small(self):
        """Return it on digits, with one seed."""
        few = {"datasets": self.datasets[:1], "replicas": (4,), "epochs": 1, "seeds": (0,)}
        return dataclasses.replace(self, rate=0.02, **few)

    def plan(self, results):
        """Return every training whose rate is known."""
        return [
            self.case(dataset, replicas, seed)
            for dataset in self.datasets
            for replicas in self.replicas
            for seed in self.seeds
            if self.rate_of(dataset) is not None
        ]

    def case(self, dataset, replicas, seed):
        """Return a case."""
        own = {"data": dataset, "rate": self.rate_of(dataset), "epochs": self.epochs}
        return own | {"replicas": replicas, "seed": seed}

    @functools.cache  # noqa: B019 - one experiment lives as long as the program
    def rate_of(self, dataset):
        """Return the learning rate, or None where the CNN's search has not come so far."""
        if self.rate is not None:
            return self.rate
        found = Results(CNN.folder / "runs.jsonl")
        problems = [
            own for own in CNN.problems if own.data == dataset and own.epochs == self.epochs
        ]
        alone = CNN.alone(found, problems[0])
        if not alone.is_complete:
            return None
        return CNN.search.rate(alone.best(found, alone.settings[0]))

    def play(self, case):
        """Train, and measure at equal distances, before each part of the steps."""
        from experiments.simulation.training import training

        splits = getattr(data, case["data"])()
        trained = training(
            CNN.model_of(case["data"]), "momentum", "adasum", case["replicas"], BATCH
        )
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
        """Return a table and a figure for each dataset."""
        body, ranges = [INTRODUCTION], []
        for dataset in self.datasets:
            if any(
                self.case(dataset, n, s) not in results for n in self.replicas for s in self.seeds
            ):
                continue
            self.draw(results, dataset, pictures)
            rows, told = self.rows(results, dataset)
            header = ["N", "1/N", "initial weights", "first quarter", "last quarter"]
            header.append("trainings in which it grows")
            text = f"Orthogonality over the training, overall and by layer, {TITLES[dataset]}"
            body += [f"### Orthogonality on {TITLES[dataset]}", pictures.image(dataset, text)]
            body += [markdown(header, rows)]
            ranges.append(f"On {TITLES[dataset]}: {told}")
        claim = "gradients start out parallel and become more orthogonal"
        said = "<br>".join(ranges) or "not played yet"
        return Report([(claim, SOURCE, said)], "\n\n".join(body))

    def rows(self, results, dataset):
        """Return the rows of a table, and what they say in words."""
        rows, grown, medians = [], 0, []
        for n in self.replicas:
            found = [results[self.case(dataset, n, seed)]["overall"] for seed in self.seeds]
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
        trainings = len(rows) * len(self.seeds)
        word = "confirmed" if grown == trainings else "not confirmed"
        return rows, (
            f"that they become more orthogonal is **{word}** ({grown} of {trainings} trainings, "
            f"{early} in the first quarter, {late} in the last); that they start out parallel is "
            f"not: {first} at the initial weights"
        )

    def draw(self, results, dataset, pictures):
        """Draw a panel for each N: overall with its range, and each layer."""
        columns = len(self.replicas)
        with pictures.drawn(dataset, 1, columns, size=(3.0, 2.9), sharey=True) as (figure, axes):
            for own, n in zip(axes[0], self.replicas, strict=True):
                found = [results[self.case(dataset, n, seed)] for seed in self.seeds]
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
