"""The generated parts of experiments/NAME/README.md and docs/evidence.md."""

import collections
import importlib
import pathlib
import re
import sys

from experiments.figures import Figures
from experiments.results import Results

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence.md"
IMAGES, LINK = ROOT / "docs" / "images" / "evidence", "../../docs/images/evidence"


def of_benchmarks(name):
    """Return a module of the benchmarks, which make tables and pages as well."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def markdown(header, rows):
    """Return a table in Markdown."""
    return of_benchmarks("report").table(header, rows)


def rewritten(document, parts):
    """Return the document with the parts between their markers."""
    return of_benchmarks("generated_tables").rewritten(document, parts)


def anchor_of(heading):
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def body_of(experiment, results, report):
    """Return the tables and figures of an experiment, and which runs they are made from."""
    from experiments.running import duration

    if not experiment.has_runs:
        return report.body
    command = f"`python -m experiments run {experiment.name}`"
    runs = f"[{len(results)} runs]({results.path.name})"
    return (
        f"{report.body}\n\nThese numbers are from {runs}. To repeat them "
        f"({duration(results.seconds)} on a busy machine), run {command}."
    )


def claim_table(claim):
    """Return a claim, and the verdict on each training that tested it."""
    columns = list(dict.fromkeys(name for own in claim.verdicts for name in own.numbers))
    rows = [
        [own.training, f"**{own.word}**", *(own.numbers.get(name, "") for name in columns)]
        for own in claim.verdicts
    ]
    table = markdown(["setup", "verdict", *columns], rows)
    return f"> **Claim:** {claim.text} ({claim.source}).\n\n{table}"


def summary(claims):
    """Return the table of all claims; a verdict leads to the page that has its numbers.

    Args:
        claims: lists of claims by the names of their experiments.
    """
    rows = [
        [claim.text, f"[{claim.word}](../experiments/{name}/README.md)"]
        for name, own in claims.items()
        for claim in own
    ]
    words = collections.Counter(claim.word for own in claims.values() for claim in own)
    tally = ", ".join(f"{count} {word}" for word, count in words.most_common())
    return f"{len(rows)} claims: {tally}.\n\n{markdown(['claim', 'verdict at our size'], rows)}"


def parts_of(experiment):
    """Return the claims of an experiment, and the texts of its page by their markers."""
    results = Results(experiment.folder / "runs.jsonl")
    if not experiment.is_finished(results):
        sys.exit(f"Runs are missing: python -m experiments run {experiment.name}")
    report = experiment.report(results, Figures(IMAGES, LINK, experiment.name))
    texts = {
        f"{experiment.name} claim {n}": claim_table(own) for n, own in enumerate(report.claims, 1)
    }
    return report.claims, texts | {experiment.name: body_of(experiment, results, report)}


def write(experiments):
    """Renew the generated parts of all pages, and the figures."""
    claims = {}
    for experiment in experiments:
        claims[experiment.name], parts = parts_of(experiment)
        path = experiment.folder / "README.md"
        path.write_text(rewritten(path.read_text(), parts))
    machine = f"Measured on: {of_benchmarks('report').this_machine()}. Simulations used one core."
    EVIDENCE.write_text(
        rewritten(EVIDENCE.read_text(), {"machine": machine, "claims": summary(claims)})
    )
