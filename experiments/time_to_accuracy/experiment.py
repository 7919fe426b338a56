"""Steps to a target, from other experiments, times the time of a step on workers.

Nothing is trained here: the steps come from the runs of `cnn`, `word2vec` and `transformer`, the
step times from the file that `benchmarks/experiment_steps.py` writes.
"""

import json
import statistics
import typing

from experiments.comparison import lowered, median_step
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.figures import NAMES
from experiments.page import ROOT, markdown
from experiments.results import Results

FILE = ROOT / "benchmarks" / "results" / "experiment_steps.json"
COMMAND = "`python benchmarks/experiment_steps.py`"
ONE = "one replica"
CLAIM = "Adasum reaches a target in less time than a tuned mean"
SOURCE = "ours; the papers report it at their size"
WORD2VEC_BATCH = 16


class Row(typing.NamedTuple):
    """The steps of a rule.

    Attributes:
        task: as `benchmarks/experiment_steps.py` has it.
        title: of it, in words.
        target: in words.
        replicas: N.
        rule: as it is named in figures.
        steps: the median; None where the target is not reached.
    """

    task: str
    title: str
    target: str
    replicas: int
    rule: str
    steps: float | None


def of_cnn():
    """Yield the rows of the CNN on digits."""
    from experiments.classification.tables import ProblemResults
    from experiments.cnn.experiment import EXPERIMENT as CNN

    problem, results = CNN.problems[0], Results(CNN.folder / "runs.jsonl")
    found = ProblemResults(CNN, results, problem)
    own = "cnn", f"CNN, {problem.title}", f"accuracy {found.target:.3f}"
    yield Row(*own, 1, ONE, found.steps_to_target(1, None, found.k_alone))
    for n in (4, 8):
        for rule in problem.rules:
            yield Row(*own, n, rule, found.steps_to_target(n, rule, found.best(n, rule)))


def of_word2vec():
    """Yield the rows of word2vec."""
    from experiments.word2vec.experiment import EXPERIMENT as WORD2VEC
    from experiments.word2vec.experiment import RULES
    from experiments.word2vec.tables import MATCHES, ProblemResults

    results = Results(WORD2VEC.folder / "runs.jsonl")
    found = ProblemResults(WORD2VEC, results, WORD2VEC_BATCH, 8)
    target = round((1 + MATCHES) * statistics.median(found.losses(ONE, found.k_alone)), 3)
    own = "word2vec", "word2vec", f"loss {target:.3f}"
    for n, rule, k in (
        (1, ONE, found.k_alone),
        *((8, rule, found.best(rule)) for rule in RULES),
    ):
        yield Row(*own, n, rule, median_step(found.runs(rule, k), -target, lowered))


def of_transformer():
    """Yield the rows of the Transformer, which has no target of one replica."""
    from experiments.transformer import experiment
    from experiments.transformer.experiment import EXPERIMENT as TRANSFORMER

    results = Results(TRANSFORMER.folder / "runs.jsonl")
    found = experiment.ProblemResults(TRANSFORMER, results, 8)
    target = round(statistics.median(found.losses("mean", 1)), 3)
    own = "transformer", "Transformer with LAMB", f"loss {target:.3f}, the mean's last"
    for rule in experiment.RULES:
        yield Row(*own, 8, rule, median_step(found.runs(rule, 1), -target, lowered))


class TimeToAccuracy(Experiment):
    """Tables of steps and of time."""

    name = "time_to_accuracy"
    title = "Time to accuracy"
    packages = ("scipy",)
    has_runs = False

    def report(self, results, figures):
        """Return the table."""
        measured = json.loads(FILE.read_text())
        seconds = {
            (line["task"], line["rule"], line["topology"]): line["seconds"]
            for line in measured["steps"]
        }
        rows = [*of_cnn(), *of_word2vec(), *of_transformer()]
        header = ["task", "target", "N", "rule", "steps", "1 worker", "2 workers", "4 workers"]
        lines = [
            [
                row.title,
                row.target,
                row.replicas,
                NAMES[row.rule],
                "–" if row.steps is None else f"{row.steps:g}",
                *(text_of(row, workers, seconds) for workers in (1, 2, 4)),
            ]
            for row in rows
        ]
        said = list(compared(rows, seconds))
        where = f"Steps measured on: {measured['machine']}, commit {measured['commit']}, {COMMAND}."
        body = [markdown(header, lines), where]
        return Report([Claim(CLAIM, SOURCE, said)], "\n\n".join(body))


def step_time(row, workers, seconds):
    """Return the seconds of a step on so many workers; None where it was not measured."""
    if row.replicas % workers or (row.replicas == 1) != (workers == 1):
        return None
    rule = "mean" if row.rule == ONE else row.rule
    return seconds.get((row.task, rule, f"{workers}x{row.replicas // workers}"))


def text_of(row, workers, seconds):
    """Return "seconds to the target (milliseconds of a step)", or nothing."""
    step = step_time(row, workers, seconds)
    if step is None:
        return ""
    took = "–" if row.steps is None else f"{row.steps * step:.1f} s"
    return f"{took} ({1000 * step:.1f} ms)"


def compared(rows, seconds):
    """Yield for each task and N a verdict: Adasum's time, divided by the mean's."""
    groups = {}
    for row in rows:
        groups.setdefault((row.title, row.replicas), []).append(row)
    for (title, replicas), own in groups.items():
        numbers, ratios = {}, []
        for workers in (2, 4):
            times = {
                row.rule: row.steps * step
                for row in own
                if row.steps is not None and (step := step_time(row, workers, seconds))
            }
            mean = times.pop("mean", None)
            found = {} if mean is None else {rule: took / mean for rule, took in times.items()}
            if found:
                texts = (f"{NAMES[rule]} {ratio:.2f}" for rule, ratio in found.items())
                numbers[f"of the mean's time on {workers} workers"] = ", ".join(texts)
            ratios += found.values()
        if ratios:
            word = "mixed" if min(ratios) < 1 <= max(ratios) else "slower"
            word = "faster" if max(ratios) < 1 else word
            yield Verdict(word, f"{title}, N = {replicas}", numbers)


EXPERIMENT = TimeToAccuracy()
