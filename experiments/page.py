"""The generated parts of docs/evidence/: verdicts, tables and figures of the experiments."""

import importlib
import pathlib
import re
import sys

from experiments.figures import Figures
from experiments.results import Results

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "evidence"
IMAGES, LINK = ROOT / "docs" / "images" / "evidence", "../images/evidence"
# Parts whose names begin with "benchmark" are written by benchmarks/generated_tables.py.
BEGIN = re.compile(r"<!-- begin: (?!benchmark )(.+?) -->")


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
    if not len(results):
        return f"{report.body}\n\nNot run yet: {command}."
    runs = f"[{len(results)} runs](../../experiments/{experiment.name}/{results.path.name})"
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
    table = markdown(["setup", "verdict", *columns], rows) if rows else "Not run yet."
    return f"> **Claim:** {claim.text} ({claim.source}).\n\n{table}"


def summary(claims, pages):
    """Return the table of all claims; a verdict leads to the page that has its numbers.

    Args:
        claims: by the names of their markers.
        pages: texts by the names of the pages.
    """
    rows = []
    for name, claim in claims.items():
        (page,) = (own for own, text in pages.items() if f"<!-- begin: {name} -->" in text)
        rows.append([claim.text, f"[{claim.word}]({page})"])
    return markdown(["claim", "verdict at our size"], rows)


def parts_of(experiment, folder, link):
    """Return the claims of an experiment by the names of their markers, and its other part."""
    results = Results(experiment.folder / "runs.jsonl")
    report = experiment.report(results, Figures(folder, link, experiment.name))
    claims = {f"{experiment.name} claim {n}": own for n, own in enumerate(report.claims, 1)}
    return claims, {experiment.name: body_of(experiment, results, report)}


def write(experiments):
    """Renew the generated parts of the pages, and the figures.

    Raises:
        ValueError: naming a part for which no page has markers.
    """
    machine = f"Measured on: {of_benchmarks('report').this_machine()}, on one of the cores."
    parts, claims = {"machine": machine}, {}
    for experiment in experiments:
        own, rest = parts_of(experiment, IMAGES, LINK)
        claims |= own
        parts |= rest | {name: claim_table(claim) for name, claim in own.items()}
    pages = {path.name: path.read_text() for path in sorted(PAGES.glob("*.md"))}
    parts["claims"] = summary(claims, pages)
    for name, text in pages.items():
        here = {own: parts.pop(own) for own in BEGIN.findall(text)}
        (PAGES / name).write_text(rewritten(text, here))
    if parts:
        raise ValueError(f"No page has markers for: {', '.join(parts)}")
