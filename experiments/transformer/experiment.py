"""A Transformer language model with LAMB: the mean of gradients against Adasum of LAMB's steps.

Two sizes of the global batch use the same number of sequences, so the larger one takes fewer steps.
Each rule is tuned for the whole number of steps, and for 70 % of them with a schedule that is
shorter by the same factor: "30 % faster" means a smaller loss after 70 % of the steps than the mean
has after all.
"""

import dataclasses
import statistics

from experiments import data, schedules
from experiments.comparison import (
    SIGNIFICANT,
    WORDS,
    edges,
    holm,
    losses_of,
    lowered,
    median_step,
    p_text,
    paired_p,
    sign,
    with_range,
)
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.figures import COLOURS, NAMES, curves, legend
from experiments.page import markdown
from experiments.search import Search, by_loss

BATCH = 2  # sequences of each replica
WARMUP = 0.1
EVALUATIONS = 40
FASTER = 0.7  # of the steps
RULES = ("mean", "adasum of steps")
SEARCH = Search(base=0.01, exponents=(-2, -1, 0, 1), seeds=(100, 101))
SOURCE = "Maleki et al., arXiv 2006.02924, abstract"


@dataclasses.dataclass(frozen=True)
class TransformerExperiment(Experiment):
    """LAMB on characters.

    Attributes:
        replicas: N.
        sequences: that a whole training sees.
        search: the grid.
    """

    replicas: tuple[int, ...] = (8, 32)
    sequences: int = 12_800
    search: Search = SEARCH

    name = "transformer"
    title = "Transformer language model with LAMB"
    packages = ("scipy", "matplotlib", "shksprdata")

    def small(self):
        """Return it with one number of replicas and a few steps."""
        search = Search(0.01, (0, 1), widenings=0, seeds=(100,), final_seeds=(0, 1))
        return dataclasses.replace(self, replicas=(4,), sequences=160, search=search)

    # ---- cases -----------------------------------------------------------------------------

    def setting(self, replicas, rule, share):
        """Return a case without rate, seed and split."""
        own = {"optimizer": "lamb", "replicas": replicas, "rule": rule}
        return own | {"sequences": self.sequences, "share": share}

    def grid(self, results, replicas):
        """Return the grid of all rules."""
        settings = [self.setting(replicas, rule, share) for share in (1, FASTER) for rule in RULES]
        return self.search.grid(results, settings, by_loss)

    def finals(self, grid, results, rule, share, replicas):
        """Return the cases on the test split."""
        setting = self.setting(replicas, rule, share)
        return grid.runs(setting, grid.best(results, setting), "test")

    def stages(self, results):
        """Yield the cases of the searches, and of the runs at the best learning rates."""
        for n in sorted(self.replicas, reverse=True):  # the claims are about large batches
            grid = self.grid(results, n)
            yield grid.cases()
            for share in (1, FASTER):
                for rule in RULES:
                    yield self.finals(grid, results, rule, share, n)

    def run(self, case):
        """Train once; measured on the split of the case."""
        from experiments.models.transformer import Transformer
        from experiments.simulation import training

        splits = data.shakespeare()
        rule, of_steps = training.split_rule_name(case["rule"])
        model = Transformer(len(data.ALPHABET))
        trained = training.training(
            model, case["optimizer"], rule, case["replicas"], BATCH, of_steps
        )
        steps = round(case["share"] * case["sequences"] / (BATCH * case["replicas"]))
        curves = trained.train(
            splits.train,
            getattr(splits, case["split"]),
            steps=steps,
            rates=schedules.warmup_and_decay(case["rate"], steps, WARMUP),
            seed=case["seed"],
            evaluations=EVALUATIONS,
        )
        return {"loss": curves["loss"][-1], "steps": curves["step"], "losses": curves["loss"]}

    # ---- what is said of it ---------------------------------------------------------------------

    def report(self, results, pictures):
        """Return the table and the figures of all finished runs."""
        found = {n: ProblemResults(self, results, n) for n in self.replicas}
        rows = [row for own in found.values() for row in own.rows()]
        header = ["N", "sequences in a step", "rule", "steps", "best learning rate", "test loss"]
        header += ["p", "steps to the mean's loss"]
        draw(found, pictures)
        body = [
            pictures.image("steps", "Loss over the steps, a panel for each batch"),
            markdown(header, rows),
            *(own.limits() for own in found.values()),
        ]
        said = [faster(found), larger(found)]
        claims = [Claim(text, SOURCE, own) for text, own in zip(CLAIMS, said, strict=True)]
        return Report(claims, "\n\n".join(filter(None, body)))


CLAIMS = (
    "LAMB with Adasum converges 30 % faster",
    "LAMB with Adasum keeps its loss at a larger batch, where LAMB alone degrades",
)


class ProblemResults:
    """The finished runs of one size of the batch."""

    def __init__(self, experiment, results, replicas):
        self.experiment, self.results, self.replicas = experiment, results, replicas
        self.grid = experiment.grid(results, replicas)
        self.rate = experiment.search.rate

    def best(self, rule, share):
        """Return the best exponent."""
        return self.grid.best(self.results, self.experiment.setting(self.replicas, rule, share))

    def runs(self, rule, share):
        """Return the results on the test split."""
        own = self.experiment.finals(self.grid, self.results, rule, share, self.replicas)
        return [self.results[case] for case in own]

    def losses(self, rule, share):
        """Return the final losses, by seed; those that diverged are infinite."""
        return losses_of(self.runs(rule, share))

    def rows(self):
        """Return the rows of the table."""
        keys = [(rule, share) for share in (1, FASTER) for rule in RULES]
        tests = [
            paired_p(self.losses(rule, share), self.losses("mean", share))
            for rule, share in keys
            if rule != "mean"
        ]
        corrected = iter(holm(tests))
        rows = []
        for rule, share in keys:
            steps = self.runs(rule, share)[0]["steps"][-1]
            row = [self.replicas, BATCH * self.replicas, NAMES[rule], steps]
            row += [f"{self.rate(self.best(rule, share)):g}", with_range(self.losses(rule, share))]
            row += ["" if rule == "mean" else p_text(next(corrected))]
            rows.append([*row, self.steps_to_target(rule, share)])
        return rows

    def steps_to_target(self, rule, share):
        """Return the median number of steps to the mean's loss, or a dash."""
        target = statistics.median(self.losses("mean", 1))
        median = median_step(self.runs(rule, share), -target, lowered)
        return "–" if median is None else f"{median:g}"

    def limits(self):
        """Name the rules whose best learning rate is an edge of the widest grid."""
        named = [f"{NAMES[own['rule']]} ({own['share']:.0%})" for own in self.grid.limited]
        return edges(named, f" on {self.replicas}")


def faster(found):
    """Return for each batch whether Adasum's loss after fewer steps is below the mean's."""
    pairs = [(own.losses(RULES[1], FASTER), own.losses("mean", 1)) for own in found.values()]
    tests, texts = holm([paired_p(*pair) for pair in pairs]), []
    for n, pair, p in zip(found, pairs, tests, strict=True):
        fewer, whole = map(statistics.median, pair)
        word = WORDS[sign(p, *pair[::-1])]  # of losses
        numbers = {f"Adasum after {FASTER:.0%} of the steps": f"{fewer:.3f}"}
        numbers |= {"mean after all steps": f"{whole:.3f}", "p": p_text(p)}
        texts.append(Verdict(word, f"{n} replicas", numbers))
    return texts


def larger(found):
    """Return how much each rule loses from the smallest to the largest batch, for each seed."""
    if len(found) < 2:
        return []
    first, last = (found[n] for n in (min(found), max(found)))
    numbers, lost = {}, []
    for rule in RULES:
        begin, end = first.losses(rule, 1), last.losses(rule, 1)
        lost.append([after - before for before, after in zip(begin, end, strict=True)])
        numbers[NAMES[rule]] = f"{statistics.median(begin):.3f} to {statistics.median(end):.3f}"
    p = paired_p(lost[1], lost[0])
    training = f"from {min(found)} to {max(found)} replicas, same number of sequences"
    return [Verdict(word_of(lost, p), training, numbers | {"p": p_text(p)})]


def word_of(lost, p):
    """Return the verdict on how much the mean and Adasum lose.

    Both take a quarter of the steps: that nothing is lost cannot be asked for, but less than half
    of what the mean loses.
    """
    mean, adasum = map(statistics.median, lost)
    if p >= SIGNIFICANT:
        return "unconfirmed"
    if adasum > mean:
        return "refuted"
    return "confirmed" if adasum < mean / 2 else "partly"


def draw(found, pictures):
    """Draw the loss over the steps."""
    with pictures.drawn("steps", len(found), sharey=True) as (figure, axes):
        for own, (n, of_batch) in zip(axes, found.items(), strict=True):
            for rule in RULES:
                runs = of_batch.runs(rule, 1)
                curves(own, runs[0]["steps"], runs, color=COLOURS[rule], label=NAMES[rule])
            own.set_title(f"N = {n}, {BATCH * n} sequences in a step")
            own.set_xlabel("steps")
        axes[0].set_ylabel("test loss (lower is better)")
        legend(figure, axes)


EXPERIMENT = TransformerExperiment()
