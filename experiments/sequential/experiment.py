"""How close the combined step of N replicas is to N small steps, one after the other.

Adasum is derived from this comparison: it estimates the steps that one device would take on the N
batches in sequence. During a training, we take N steps in sequence on fresh batches, and compare
them with one step of each rule on the same batches, at the same weights and learning rate:
``‖step - sequential‖ / ‖sequential‖``. The training itself is not changed.
"""

import dataclasses
import functools
import statistics

import numpy as np
import tensorflow as tf

from experiments import data
from experiments.cnn.experiment import EXPERIMENT as CNN
from experiments.comparison import with_range
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.figures import COLOURS, NAMES, legend, median_and_range
from experiments.page import markdown
from experiments.simulation.combination import Combination
from experiments.simulation.training import training

RULES = ("mean", "sum", "adasum")
TITLES = {"digits": "digits", "mnist1d": "MNIST-1D"}
BATCH = 4  # rows of each replica
BATCHES = 8  # that a measurement is the mean of
MEASUREMENTS = 20
SOURCE = "Maleki et al., MLSys 2021"


class Steps:
    """Steps of all rules, and steps in sequence, with plain SGD.

    Args:
        trained: a `Training`.
    """

    def __init__(self, trained):
        self._trained = trained
        own = (trained.replicas, trained.offsets)
        self._combinations = [Combination(rule, *own) for rule in RULES]

    def _gradient(self, weights, x, y):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = self._trained.model.logits(self._trained.unpacked(weights[None]), x[None])[0]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, weights)

    @tf.function
    def compared(self, weights, x, y, rate):
        """Return the distance of each rule's step from the steps in sequence, and its length.

        Args:
            weights: float32 ``[n]``.
            x: the inputs of all replicas, ``[N B, ...]``.
            y: their labels.
            rate: the learning rate.

        Returns:
            Float32 ``[RULES, 2]``: the distance, and the length of the step, both relative to the
            length of the N steps in sequence.
        """
        replicas = self._trained.replicas
        x_N = tf.reshape(x, [replicas, BATCH, *x.shape[1:]])
        y_N = tf.reshape(y, [replicas, BATCH])

        def step(index, moved):
            return index + 1, moved - rate * self._gradient(moved, x_N[index], y_N[index])

        moved = tf.while_loop(lambda index, _: index < replicas, step, [0, weights])[1]
        sequential = moved - weights
        rows = self._trained.gradients(weights, x, y)
        steps = [
            -rate * combination(rows, combination.initial_state())[0]
            for combination in self._combinations
        ]
        numbers = [[tf.norm(own - sequential), tf.norm(own)] for own in steps]
        return tf.stack(numbers) / tf.norm(sequential)


@dataclasses.dataclass(frozen=True)
class SequentialExperiment(Experiment):
    """Distances of steps over trainings with SGD and Adasum, at the best rate of one replica.

    Attributes:
        datasets: names of functions of `experiments.data`.
        replicas: N.
        seeds: one training each.
        epochs: of each training.
        rate: of all trainings. Defaults to `None`: the best of one replica in the experiment `cnn`.
    """

    datasets: tuple[str, ...] = ("digits",)
    replicas: tuple[int, ...] = (4, 8, 16, 32)
    seeds: tuple[int, ...] = tuple(range(5))
    epochs: int = 6
    rate: float | None = None

    name = "sequential"
    title = "One step of N replicas and N steps in sequence"

    @property
    def packages(self):
        """The packages that its data and figures need."""
        return "matplotlib", *(data.PACKAGES[name] for name in self.datasets)

    def small(self):
        """Return it on 4 replicas, for an epoch, with one seed."""
        return dataclasses.replace(self, replicas=(4,), seeds=(0,), epochs=1, rate=0.02)

    def cases(self, dataset, replicas):
        """Return the cases."""
        own = {"data": dataset, "rate": self._rates[dataset], "epochs": self.epochs}
        return [own | {"replicas": replicas, "seed": seed} for seed in self.seeds]

    @functools.cached_property
    def _rates(self):
        own = {"optimizer": "sgd", "epochs": self.epochs}
        return {name: self.rate or CNN.best_rate_alone(data=name, **own) for name in self.datasets}

    def stages(self, results):
        """Yield the trainings."""
        for dataset in self.datasets:
            for replicas in self.replicas:
                yield self.cases(dataset, replicas)

    def run(self, case):
        """Train, and compare at equal distances, before each part of the steps."""
        splits, replicas = getattr(data, case["data"])(), case["replicas"]
        trained = training(CNN.model_of(case["data"]), "sgd", "adasum", replicas, BATCH)
        all_steps = Steps(trained)
        steps = case["epochs"] * (len(splits.train[1]) // (BATCH * replicas))
        rate = tf.constant(case["rate"], tf.float32)
        begun, means, accuracies = trained.train_and_look(
            splits,
            lambda *own: all_steps.compared(*own, rate),
            np.random.default_rng([case["seed"], 3]),
            BATCHES,
            steps=steps,
            rates=[case["rate"]] * steps,
            seed=case["seed"],
            evaluations=MEASUREMENTS,
        )
        distances, lengths = np.moveaxis(means, 2, 0).tolist()
        measured = {"step": begun, "distances": distances, "lengths": lengths}
        return measured | {"steps": steps, "accuracies": accuracies}

    def report(self, results, pictures):
        """Return a table and a figure for each data set."""
        body, closer, faster = [], [], []
        for dataset in self.datasets:
            found = {n: [results[case] for case in self.cases(dataset, n)] for n in self.replicas}
            self.draw(found, dataset, pictures)
            title = TITLES[dataset]
            text = f"Distance of one step from N steps in sequence over the training, {title}"
            header = ["N", *(f"distance, {NAMES[rule]}" for rule in RULES)]
            header += ["length, Adasum, first quarter", "length, Adasum, last quarter"]
            body += [f"### {title}", pictures.image(dataset, text)]
            body.append(markdown(header, [row(n, runs) for n, runs in found.items()]))
            closer.append(is_closer(found, title))
            faster.append(is_faster(found, title))
        claims = [
            Claim(
                "A step of Adasum is closer to N steps in sequence than a step of the mean or of "
                "the sum",
                SOURCE,
                closer,
            ),
            Claim("Adasum takes small steps first, and larger steps later", SOURCE, faster),
        ]
        return Report(claims, "\n\n".join(body))

    def draw(self, found, dataset, pictures):
        """Draw a panel for each N, with the distance of each rule."""
        with pictures.drawn(dataset, len(found), sharey=True) as (figure, axes):
            for own, (n, runs) in zip(axes, found.items(), strict=True):
                x = [step / runs[0]["steps"] * self.epochs for step in runs[0]["step"]]
                for index, rule in enumerate(RULES):
                    curves = [[at[index] for at in run["distances"]] for run in runs]
                    y = list(zip(*curves, strict=True))
                    median_and_range(own, x, y, color=COLOURS[rule], label=NAMES[rule])
                own.set_title(f"N = {n}")
                own.set_xlabel("epochs")
                own.set_xlim(0, self.epochs)
            axes[0].set_ylabel("distance (0: the same step)")
            axes[0].set_ylim(0, 2)  # the sum is farther on many replicas, see the table
            legend(figure, axes)


def distances_of(runs, rule):
    """Return the mean distance of a rule over each training."""
    index = RULES.index(rule)
    return [statistics.mean(at[index] for at in run["distances"]) for run in runs]


def lengths_of(runs):
    """Return the mean length of Adasum's steps in the first and in the last quarter."""
    index = RULES.index("adasum")
    lengths = [[at[index] for at in run["lengths"]] for run in runs]
    quarter = max(1, len(lengths[0]) // 4)
    first = [statistics.mean(own[:quarter]) for own in lengths]
    return first, [statistics.mean(own[-quarter:]) for own in lengths]


def row(n, runs):
    """Return the row of the table for N replicas."""
    return [n, *(with_range(distances_of(runs, rule)) for rule in RULES)] + [
        with_range(own) for own in lengths_of(runs)
    ]


def is_closer(found, title):
    """Return the verdict: whether Adasum has the smallest median distance, on how many N."""
    medians = {
        rule: [statistics.median(distances_of(runs, rule)) for runs in found.values()]
        for rule in RULES
    }
    closest = [min(RULES, key=lambda rule: medians[rule][i]) for i in range(len(found))]
    count = closest.count("adasum")
    word = "confirmed" if count == len(found) else "partly" if count else "refuted"
    numbers = {NAMES[rule]: f"{min(own):.2f} to {max(own):.2f}" for rule, own in medians.items()}
    return Verdict(word, title, numbers)


def is_faster(found, title):
    """Return the verdict: in how many trainings Adasum's steps grow, relative to the sequence."""
    pairs = [pair for runs in found.values() for pair in zip(*lengths_of(runs), strict=True)]
    grown = sum(late > early for early, late in pairs)
    word = "confirmed" if grown == len(pairs) else "partly" if 2 * grown > len(pairs) else "refuted"
    return Verdict(word, title, {"runs": f"{grown} of {len(pairs)}"})


EXPERIMENT = SequentialExperiment()
