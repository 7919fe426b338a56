"""AdaScale's Table 2: S times the batch, without new tuning, against linear scaling.

The learning rate is tuned for S = 1 only. AdaScale (AS), linear scaling with warm-up (LSW), and LSW
with as many iterations as AdaScale took (LSW+) use this learning rate, also if S changes during the
training. At the largest S all three are also tuned again, on one grid.
"""

import dataclasses
import functools
import statistics

import numpy as np

from experiments import data
from experiments.classification.problem import TITLES
from experiments.experiment import Experiment, Report
from experiments.search import Search

ONE = "S = 1"
AS, LSW, LSW_PLUS = METHODS = ("AS", "LSW", "LSW+")
IDENTITY = "identity rule"  # the rate and the iterations of S = 1
SMOOTHINGS = (0.0, 0.9, 0.999)  # θ of the moving averages, besides the default
BATCH = 8  # rows of a small batch
FALL = 0.75  # of the steps, from where on the rate is a tenth
WARMUP = 5 / 90  # of the iterations of LSW; the package's default
SEARCH = Search(base=0.01, exponents=(-1, 0, 1), seeds=(100, 101, 102), final_seeds=tuple(range(8)))


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        data: a function of `experiments.data`.
        epochs: of S = 1.
        scales: S, besides 1.
        elastic: S of each third of a training that is elastic, upwards; may be empty.
        tuned: the S at which all methods are retuned.
        varied: the S of the trainings with another θ and with the identity rule; may be empty.
        search: the grid.
        model: a CNN, or "residual network".
    """

    data: str
    epochs: int
    scales: tuple[int, ...] = (4, 16, 64)
    elastic: tuple[int, ...] = (4, 16, 64)
    tuned: tuple[int, ...] = (64,)
    varied: tuple[int, ...] = ()
    search: Search = SEARCH
    model: str = "CNN"

    @property
    def title(self):
        """In words."""
        return TITLES[self.data] + ("" if self.model == "CNN" else f", {self.model}")

    def setting(self, scale, method, iterations=None):
        """Return a case without rate, seed and split."""
        own = {"data": self.data, "epochs": self.epochs, "scale": scale, "method": method}
        own |= {} if self.model == "CNN" else {"model": self.model}
        return own if iterations is None else own | {"iterations": iterations}

    def elastic_settings(self):
        """Return the settings with an S that changes."""
        rising = "-".join(map(str, self.elastic)), "-".join(map(str, self.elastic[::-1]))
        phases = rising if self.elastic else ()
        return [self.setting(scale, method) for scale in phases for method in (AS, LSW)]

    def variants(self, scale):
        """Return the settings of AdaScale with another θ, and of the identity rule."""
        own = [self.setting(scale, AS) | {"smoothing": smoothing} for smoothing in SMOOTHINGS]
        return [*own, self.setting(scale, IDENTITY)]

    def tests(self, setting, k):
        """Return the cases of a setting on the test split."""
        own = dict(setting, rate=self.search.rate(k), split="test")
        return [dict(own, seed=seed) for seed in self.search.final_seeds]

    def alone(self, results):
        """Return the grid of S = 1."""
        return self.search.grid(results, [self.setting(1, ONE)], score)

    def settings(self, results, scale, k_alone):
        """Return the settings of one S, for which AdaScale has run: LSW+ takes its iterations."""
        own = self.setting(scale, AS)
        counts = [results[case]["iterations"] for case in self.tests(own, k_alone)]
        longer = self.setting(scale, LSW_PLUS, round(statistics.median(counts)))
        return [own, self.setting(scale, LSW), longer]

    def retuned(self, results, scale, k_alone):
        """Return the grid of all methods at one S."""
        settings = self.settings(results, scale, k_alone)
        return self.search.grid(results, settings, score, also=(k_alone,))


TASKS = (
    Task("digits", 12, varied=(16,)),
    Task("mnist1d", 8),
    Task("digits", 12, elastic=(), tuned=(), model="residual network"),
    # AS and LSW+ take three to five times as long as a training at S = 1, so there are fewer seeds.
    Task(
        "fashion_mnist",
        1,
        scales=(8, 32, 64),
        elastic=(),
        tuned=(),
        search=dataclasses.replace(SEARCH, seeds=(100, 101), final_seeds=tuple(range(6))),
    ),
)


@dataclasses.dataclass(frozen=True)
class AdaScaleExperiment(Experiment):
    """AS, LSW and LSW+.

    Attributes:
        tasks: what is trained.
    """

    tasks: tuple[Task, ...] = TASKS

    name = "adascale"
    title = "AdaScale against linear scaling"

    @property
    def packages(self):
        """The packages that its data and figures need."""
        return "scipy", "matplotlib", *data.packages_of(task.data for task in self.tasks)

    def small(self):
        """Return it on the first task, for an epoch, with one S."""
        search = Search(0.02, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        own = {"epochs": 1, "scales": (8,), "elastic": (4, 8), "tuned": (8,), "varied": ()}
        own |= {"search": search}
        return AdaScaleExperiment((dataclasses.replace(self.tasks[0], **own),))

    def stages(self, results):
        """Yield the cases of all tables, then those of the retuned methods."""
        ks = {}
        for task in self.tasks:
            alone = task.alone(results)
            yield alone.cases()
            (setting,) = alone.settings
            ks[task] = k_alone = alone.best(results, setting)
            yield task.tests(setting, k_alone)
            for scale in task.scales:
                yield task.tests(task.setting(scale, AS), k_alone)
                for own in task.settings(results, scale, k_alone):
                    yield task.tests(own, k_alone)
            variants = [own for scale in task.varied for own in task.variants(scale)]
            for own in task.elastic_settings() + variants:
                yield task.tests(own, k_alone)
        for task, k_alone in ks.items():
            for scale in task.tuned:
                grid = task.retuned(results, scale, k_alone)
                yield grid.cases()
                for own in grid.settings:
                    yield task.tests(own, grid.best(results, own))

    def run(self, case):
        """Train once; measured on the split of the case."""
        from experiments.simulation import gains

        splits = getattr(data, case["data"])()
        model = model_of(case)
        total = case["epochs"] * (len(splits.train[1]) // BATCH)
        rates = falling(case["rate"], total)
        phases = phases_of(case["scale"])
        own = splits.train, getattr(splits, case["split"])
        if case["method"] == AS:
            trainings = [
                (
                    index / len(phases),
                    gains.gain_training(model, scale, BATCH, case.get("smoothing")),
                )
                for index, scale in enumerate(phases)
            ]
            return gains.train(trainings, *own, rates=rates, seed=case["seed"])
        if case["method"] in (ONE, IDENTITY):
            of_phases = [rates]
        else:
            of_phases = scaled(case["rate"], total, phases, case.get("iterations"))
        return gains.train_with_schedules(
            model, BATCH, phases, *own, rates=of_phases, seed=case["seed"]
        )

    # ---- what is said of it ---------------------------------------------------------------------

    def report(self, results, figures):
        """Return the tables and figures of all finished runs."""
        from experiments.adascale import tables

        return Report(*tables.report(self, results, figures))


def score(result):
    """Return the score of a result in a search: the accuracy, then the training loss."""
    if result["accuracy"] is None:
        return 0.0, -1e9
    return result["accuracy"], -result["training loss"]


def model_of(case):
    """Return the model of a case."""
    from experiments.models.cnn import CNN
    from experiments.residual.experiment import EXPERIMENT as RESIDUAL

    if "model" in case:
        return RESIDUAL.model_of(case["data"])
    models = {"mnist1d": CNN((1, 40, 1), (1, 5), (1, 2)), "fashion_mnist": CNN((28, 28, 1))}
    return models.get(case["data"], CNN())


def phases_of(scale):
    """Return S of each part of a training, of a number or of "4-16-64"."""
    return (scale,) if isinstance(scale, int) else tuple(map(int, scale.split("-")))


def schedule(rate, total):
    """Return that of S = 1: the rate, and a tenth of it for the last quarter."""
    import keras

    boundary = [round(FALL * total)]
    return keras.optimizers.schedules.PiecewiseConstantDecay(boundary, [rate, rate / 10])


@functools.cache
def falling(rate, total):
    """Return the rates of S = 1, ``[T]``."""
    return values(schedule(rate, total), total)


@functools.cache
def scaled(rate, total, phases, iterations=None):
    """Return the rates of linear scaling with warm-up: for each phase an array.

    With one S this is the package's `LinearScalingWarmup`. Where S changes, each phase goes through
    its part of the schedule at S times the rate, and only the first one warms up, in as many
    iterations as all phases' share of 5/90.
    """
    from tf_adasum.schedules import LinearScalingWarmup

    if len(phases) == 1:
        made = LinearScalingWarmup(
            schedule(rate, total),
            scale=phases[0],
            total_steps=total,
            warmup=WARMUP,
            iterations=iterations,
        )
        return [values(made, made.iterations)]
    small = falling(rate, total)
    edges = np.linspace(0, total, len(phases) + 1).round().astype(int)
    parts = [
        scale * small[begin:end:scale]
        for scale, begin, end in zip(phases, edges, edges[1:], strict=False)
    ]
    warming = WARMUP * sum(map(len, parts))
    rising = np.minimum(np.arange(len(parts[0])) / warming, 1)
    parts[0] = parts[0] / phases[0] * (1 + (phases[0] - 1) * rising)
    return parts


def values(schedule, count):
    """Return the first rates of a schedule of Keras."""
    import tensorflow as tf

    @tf.function
    def all_of_them():
        return tf.map_fn(schedule, tf.range(count), fn_output_signature=tf.float32)

    return all_of_them().numpy()


EXPERIMENT = AdaScaleExperiment()
