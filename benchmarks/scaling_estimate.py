"""How well does the progress of a step predict the steps on other numbers of replicas?

Each task is trained with several numbers of replicas at the learning rate of one. A run with
`MEASURED` replicas gives μ² and σ² of each variable, as `OrthogonalityTracker` measures them, and
predicts the steps to the same loss with other numbers, as `tracker.estimate` does. The report has
all predicted and measured steps. Tasks are small, and written in NumPy; gradients are exact.

    .venv/bin/python benchmarks/scaling_estimate.py            # a few minutes
"""

import argparse
import sys
import time

import numpy as np
import report

from experiments import data
from tf_adasum.callbacks import progress

REPLICAS, MEASURED, ROWS = (1, 2, 4, 8, 16, 32, 64), 8, 8
LEVELS = (0.5, 0.8)  # of the way from the first to the last loss of one replica


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Perceptron:
    """A network with one or two hidden layers; `rate` is the learning rate of one replica."""

    def __init__(self, name, splits, hidden, rate, momentum=0.0):
        self.name, self.rate, self.momentum = name, rate, momentum
        (x, y), (xv, yv) = splits.train, splits.validation
        self.x, self.y = x.reshape(len(x), -1).astype("float64"), y
        self.xv, self.yv = xv.reshape(len(xv), -1).astype("float64"), yv
        self.sizes = [self.x.shape[1], *hidden, int(y.max()) + 1]

    def start(self, random):
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        return [
            each
            for a, b in pairs
            for each in (random.normal(size=[a, b]) * np.sqrt(2 / a), np.zeros(b))
        ]

    def _forward(self, weights, x):
        activations = [x]
        for i in range(0, len(weights), 2):
            z = activations[-1] @ weights[i] + weights[i + 1]
            activations.append(np.maximum(z, 0) if i + 2 < len(weights) else softmax(z))
        return activations

    def loss(self, weights):
        p = self._forward(weights, self.xv)[-1]
        return -np.log(p[np.arange(len(p)), self.yv] + 1e-12).mean()

    def gradients(self, weights, random, replicas):
        rows = random.integers(0, len(self.x), [replicas, ROWS])
        activations = self._forward(weights, self.x[rows])
        error = (activations[-1] - np.eye(self.sizes[-1])[self.y[rows]]) / ROWS
        found = []
        for i in range(len(weights) - 2, -1, -2):
            below = activations[i // 2]
            found = [np.einsum("nbi,nbj->nij", below, error), error.sum(1), *found]
            error = (error @ weights[i].T) * (below > 0)
        return found


class SkipGram:
    """Embeddings of words that occur together, with one wrong word for each right one."""

    def __init__(self, name, words=300, width=16, rate=0.5, momentum=0.0):
        self.name, self.rate, self.momentum = name, rate, momentum
        self.words, self.width = words, width
        random = np.random.default_rng(5)
        topics = random.dirichlet(np.full(words, 0.05), size=20)
        self._pairs = np.array(
            [random.choice(words, 2, p=topics[random.integers(20)]) for _ in range(30_000)]
        )
        self._wrong = random.integers(0, words, len(self._pairs))

    def start(self, random):
        shape = [self.words, self.width]
        return [random.normal(size=shape) * 0.1, random.normal(size=shape) * 0.1]

    def _scores(self, weights, rows):
        a, b = self._pairs[rows, 0], self._pairs[rows, 1]
        u, v, w = weights[0][a], weights[1][b], weights[1][self._wrong[rows]]
        return u, v, w, (u * v).sum(-1), (u * w).sum(-1)

    def loss(self, weights):
        *_, right, wrong = self._scores(weights, np.arange(3000))
        return (np.log1p(np.exp(-right)) + np.log1p(np.exp(wrong))).mean()

    def gradients(self, weights, random, replicas):
        rows = random.integers(3000, len(self._pairs), [replicas, ROWS])
        u, v, w, right, wrong = self._scores(weights, rows)
        p = (-1 / (1 + np.exp(right)) / ROWS)[..., None]
        q = (1 / (1 + np.exp(-wrong)) / ROWS)[..., None]
        of_in, of_out = (np.zeros([replicas, self.words, self.width]) for _ in range(2))
        number = np.arange(replicas)[:, None]
        np.add.at(of_in, (number, self._pairs[rows, 0]), p * v + q * w)
        np.add.at(of_out, (number, self._pairs[rows, 1]), p * u)
        np.add.at(of_out, (number, self._wrong[rows]), q * u)
        return [of_in, of_out]


def adasum(vectors):
    """Combine ``[N, n]`` in the tree of the rule."""
    nodes = vectors
    while len(nodes) > 1:
        even = len(nodes) // 2 * 2
        a, b = nodes[0:even:2], nodes[1:even:2]
        ab, aa, bb = ((p * q).sum(1, keepdims=True) for p, q in ((a, b), (a, a), (b, b)))
        aa, bb = np.where(aa > 0, aa, 1), np.where(bb > 0, bb, 1)
        nodes = np.concatenate([(1 - ab / (2 * aa)) * a + (1 - ab / (2 * bb)) * b, nodes[even:]])
    return nodes[0]


def train(task, replicas, seed, steps, until=None):
    """Return the validation losses, and for each step ‖g‖² and ‖μ‖² of each variable."""
    random = np.random.default_rng(seed)
    weights = task.start(np.random.default_rng(1000 + seed))
    velocity = [np.zeros_like(w) for w in weights]
    losses, measured = [task.loss(weights)], []
    for step in range(steps):
        found = [g.reshape(replicas, -1) for g in task.gradients(weights, random, replicas)]
        if replicas > 1:
            squares = np.array([(g**2).sum() for g in found]) / replicas
            totals = np.array([(g.sum(0) ** 2).sum() for g in found])
            off = (totals - replicas * squares) / (replicas * (replicas - 1))
            measured.append(np.stack([squares, off]))
        for i, gradients in enumerate(found):
            change = adasum(gradients).reshape(weights[i].shape)
            velocity[i] = task.momentum * velocity[i] + change
            weights[i] = weights[i] - task.rate * velocity[i]
        losses.append(task.loss(weights))
        recent = np.mean(losses[-max(3, 32 // replicas) :])
        if until is not None and step > 32 // replicas and recent <= until:
            break
    return np.array(losses), measured


def smoothed(losses, replicas):
    width = max(3, 32 // replicas)
    return np.convolve(np.pad(losses, (width - 1, 0), mode="edge"), np.ones(width) / width, "valid")


def steps_to(losses, replicas, loss):
    below = smoothed(losses, replicas) <= loss
    return float(np.argmax(below)) if below.any() else np.nan


def tasks(quick):
    digits, mnist1d = data.digits(), data.mnist1d()
    found = [
        Perceptron("digits, SGD", digits, [32], 0.1),
        Perceptron("digits, Momentum", digits, [32], 0.01, 0.9),
        Perceptron("digits, two hidden layers", digits, [64, 32], 0.05),
        Perceptron("MNIST-1D, SGD", mnist1d, [64, 32], 0.05),
        Perceptron("MNIST-1D, Momentum", mnist1d, [64, 32], 0.005, 0.9),
        SkipGram("skip-gram, SGD"),
    ]
    return found[:1] if quick else found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one task, one seed")
    options = parser.parse_args()
    seeds = (1,) if options.quick else (1, 2, 3)
    rows, ratios, began = [], {n: [] for n in REPLICAS if n != MEASURED}, time.time()
    for task in tasks(options.quick):
        alone = 600 if options.quick else 3000
        base = [train(task, 1, seed, alone)[0] for seed in seeds]
        mean = smoothed(np.mean(base, axis=0), 1)
        targets = [mean[0] + level * (mean[-1] - mean[0]) for level in LEVELS]
        steps = {}
        runs = {}
        for replicas in REPLICAS[1:]:
            most = max(60, int(alone / replicas**0.5))
            runs[replicas] = [train(task, replicas, s, most, targets[-1]) for s in seeds]
            for number, target in enumerate(targets):
                own = [steps_to(losses, replicas, target) for losses, _ in runs[replicas]]
                steps[replicas, number] = np.mean(own)
        for number, target in enumerate(targets):
            steps[1, number] = np.mean([steps_to(each, 1, target) for each in base])
            predicted = {replicas: [] for replicas in REPLICAS}
            for losses, measured in runs[MEASURED]:
                own = measured[: int(steps_to(losses, MEASURED, target))]
                for replicas in REPLICAS:
                    predicted[replicas].append(len(own) * progress.ratio(own, MEASURED, replicas))
            for replicas in REPLICAS:
                guess, real = np.mean(predicted[replicas]), steps[replicas, number]
                if replicas != MEASURED:
                    ratios[replicas].append(guess / real)
                share, ratio = LEVELS[number], f"{guess / real:.2f}"
                numbers = f"{replicas}{' (measured here)' * (replicas == MEASURED)}"
                rows.append([task.name, share, numbers, f"{real:.0f}", f"{guess:.0f}", ratio])
        print(f"{task.name}: {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    header = ["task", "share of the way", "replicas", "steps measured", "predicted", "ratio"]
    found = np.concatenate(list(ratios.values()))
    finite = found[np.isfinite(found)]
    within = np.mean(np.abs(np.log(finite)) <= np.log(1.3))
    by_replicas = "\n".join(
        f"N = {n}: median ratio {np.nanmedian(own):.2f}." for n, own in ratios.items()
    )
    report.write(
        "scaling_estimate",
        "Predicted and measured steps on other numbers of replicas",
        "Each row: the steps to the same validation loss (a share of the way from the first to the "
        "last loss of one replica), as measured, and as predicted from the run with "
        f"{MEASURED} replicas. {ROWS} samples per replica, the learning rate of one replica, means "
        f"of {len(seeds)} seeds.\n\n{report.table(header, rows)}\n\n"
        f"{len(finite)} of {len(found)} points reached the loss. Within 30 %: {within:.0%}. "
        f"Median ratio {np.median(finite):.2f}, from {finite.min():.2f} to {finite.max():.2f}.\n"
        f"{by_replicas}",
    )


if __name__ == "__main__":
    main()
