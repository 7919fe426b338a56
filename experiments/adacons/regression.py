"""The regression of AdaCons's authors: what examples/adacons_linear_regression.py has measured."""

import re

from experiments.experiment import Verdict
from experiments.page import ROOT, markdown

REPORTS = (
    ROOT / "benchmarks" / "results" / "2026-11-21-adacons_linear_regression.md",
    ROOT / "benchmarks" / "results" / "2026-11-27-adacons_linear_regression_2048.md",
)
STEPS = {"distance": "to the optimum", "loss": "line search on the loss"}


def rows():
    """Return the rows of the tables of both reports, each a list of texts."""
    found = []
    for report in REPORTS:
        lines = [line for line in report.read_text().splitlines() if line.startswith("| ")]
        found += [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    return found


def numbers(text):
    """Return median, lowest and highest of "median (lowest to highest)"."""
    return [float(own) for own in re.split(r" \(| to |\)", text)[:3]]


def table():
    """Return the table in Markdown."""
    header = ["step", "batch", "workers", "mean", "published", "AdaCons", "published"]
    return markdown(header, [[STEPS[own[0]], *own[1:]] for own in rows()])


def verdicts():
    """Return for each step and batch whether the losses of AdaCons are below those of the mean.

    The report has medians and ranges: "confirmed" if all seeds are below all of the mean's.
    """
    found = {}
    for step, batch, workers, mean, _, adacons, _ in rows():
        ours, theirs = numbers(adacons), numbers(mean)
        is_below, is_above = ours[2] < theirs[1], ours[0] > theirs[0]
        word = "confirmed" if is_below else "unconfirmed" if is_above else "partly"
        said = f"AdaCons {ours[0]:.3g}, mean {theirs[0]:.3g}"
        found.setdefault((step, batch), {})[workers] = word, said
    texts = []
    for (step, batch), by_workers in found.items():
        words = {word for word, _ in by_workers.values()}
        said = {f"loss on {workers} workers": own for workers, (_, own) in by_workers.items()}
        title = f"step: {STEPS[step]}, batch {batch}"
        texts.append(Verdict(words.pop() if len(words) == 1 else "partly", title, said))
    return texts
