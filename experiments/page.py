"""docs/evidence.md, joined from the parts of the experiments."""

import importlib
import pathlib
import sys

from experiments.figures import Figures
from experiments.results import Results

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence.md"
IMAGES = "images/evidence"


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
    return of_benchmarks("exchange_extend").rewritten(document, parts)


def section(experiment, results, folder, link):
    """Return the verdicts of an experiment, and its section."""
    from experiments.running import duration

    report = experiment.report(results, Figures(folder, link, experiment.name))
    if not experiment.is_played:
        return report.verdicts, report.body
    command = f"`python -m experiments run {experiment.name}`"
    if not len(results):
        return report.verdicts, f"{report.body}\n\nNot played yet: {command}."
    played = f"{len(results)} runs in {duration(results.seconds)} on a machine with other work"
    lines = f"[lines](../experiments/{experiment.name}/{results.path.name})"
    return report.verdicts, f"{report.body}\n\n{played}: {lines}, {command}."


def verdict_table(verdicts):
    """Return the table of all claims."""
    header = ["claim", "source", "at our size"]
    return markdown(header, verdicts)


def write(experiments):
    """Renew the parts of these experiments on the page; parts of others stay as they are."""
    machine = f"Played on: {of_benchmarks('report').this_machine()}, on one of the cores."
    document = rewritten(PAGE.read_text(), {"machine": machine})
    for experiment in experiments:
        results = Results(experiment.folder / "runs.jsonl")
        folder = PAGE.parent / IMAGES
        verdicts, text = section(experiment, results, folder, IMAGES)
        parts = {f"{experiment.name} verdicts": verdict_table(verdicts), experiment.name: text}
        document = rewritten(document, parts)
    PAGE.write_text(document)
