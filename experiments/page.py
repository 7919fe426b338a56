"""docs/evidence.md, joined from the parts of the experiments."""

import pathlib
import re
import sys

from experiments.figures import Figures
from experiments.results import Results

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence.md"
IMAGES = "images/evidence"


def markdown(header, rows):
    """Return a table in Markdown."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import report

    sys.path.remove(str(ROOT / "benchmarks"))
    return report.table(header, rows)


def section(experiment, results, folder, link):
    """Return the verdicts of an experiment, and its section."""
    from experiments.running import duration

    report = experiment.report(results, Figures(folder, link, experiment.name))
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
    document = PAGE.read_text()
    for experiment in experiments:
        results = Results(experiment.folder / "runs.jsonl")
        folder = PAGE.parent / IMAGES
        verdicts, text = section(experiment, results, folder, IMAGES)
        parts = {f"{experiment.name} verdicts": verdict_table(verdicts), experiment.name: text}
        document = rewritten(document, parts)
    PAGE.write_text(document)


def rewritten(document, parts):
    """Return the document with the parts between their markers.

    Raises:
        ValueError: naming the part for which there are no markers.
    """
    for name, text in parts.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        pattern = f"({re.escape(begin)}).*?({re.escape(end)})"
        document, count = re.subn(
            pattern,
            lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}",
            document,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f"Expected {begin} … {end} once in the page. Received: {count}")
    return document
