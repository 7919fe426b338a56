"""The regression of AdaCons's authors: what examples/adacons_linear_regression.py has measured."""

import re

from experiments.experiment import Verdict
from experiments.page import ROOT, markdown

REPORT = ROOT / "benchmarks" / "results" / "2026-11-21-adacons_linear_regression.md"
STEPS = {"distance": "to the optimum", "loss": "line search on the loss"}


def rows():
    """Return the rows of the report's table, each a list of texts."""
    lines = [line for line in REPORT.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def numbers(text):
    """Return median, lowest and highest of "median (lowest to highest)"."""
    return [float(own) for own in re.split(r" \(| to |\)", text)[:3]]


def table():
    """Return the table in Markdown, without the size of the batch, which is 128."""
    header = ["step", "workers", "mean", "published", "AdaCons", "published"]
    return markdown(header, [[STEPS[own[0]], *own[2:]] for own in rows()])


def verdicts():
    """Return on each step whether AdaCons's losses are below the mean's.

    The report has medians and ranges: "confirmed" where all seeds are below all of the mean's.
    """
    texts = []
    for step, words in STEPS.items():
        signs, said = set(), {}
        for name, _, workers, mean, _, adacons, _ in rows():
            if name != step:
                continue
            ours, theirs = numbers(adacons), numbers(mean)
            is_below, is_above = ours[2] < theirs[1], ours[0] > theirs[0]
            signs.add("confirmed" if is_below else "unconfirmed" if is_above else "partly")
            said[f"loss on {workers} workers"] = f"AdaCons {ours[0]:.3g}, mean {theirs[0]:.3g}"
        word = signs.pop() if len(signs) == 1 else "partly"
        texts.append(Verdict(word, f"step: {words}", said))
    return texts
