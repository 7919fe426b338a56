"""Report how unauthenticated clients and disk failures affect workers, and write two tables.

    python benchmarks/clients_and_disks.py [--only PATTERN] [--strategy adasum] [--at-once 2]

Runs the cases of tests/support/client_cases.py and tests/support/disk_cases.py (two of the disks
are mounted: they need root). For comparison, stock TensorFlow trains with a custom training loop in
the first table, because its `fit` fails on several workers in any case, and stock Keras trains in
one process in the second. All timeouts are the defaults.

Writes the tables in benchmarks/results/. Cases that are not selected keep their results: all
results, with the complete messages, are in unauthenticated_clients.json and disks.json there.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import json
import pathlib
import re
import sys
import tempfile
import threading
import types
from collections.abc import Callable

import generated_tables
import networks
import reliability
import report

sys.path[:0] = [str(report.ROOT / "tests" / "multi_worker"), str(report.ROOT / "tests")]

from support import client_cases, disk_cases  # noqa: E402 - found on the path above

PAGES = report.RESULTS
LENGTH = 130  # characters of an error message in a cell
# The folder of a case, which is removed from messages.
FOLDER = re.compile(r"/[\w./-]*/disk\b")
ADDRESS = re.compile(r" \((?:\[?[\w.:-]+\]?):\d+\)")
_digests = threading.Lock()


def cell_of_clients(case, outcomes, expected):
    return networks.cell(case, outcomes, expected, client_cases.violations)


def cell_of_disk(case, told, expected):
    """Return what the workers did in each start. Wrong behaviour is bold."""
    parts = []
    for start, outcomes in zip(case.starts, told, strict=True):
        texts = {rank: text_of(start, each, expected) for rank, each in outcomes.items()}
        if len(set(texts.values())) == 1:
            text = texts[0] if len(texts) == 1 else f"all: {texts[0]}"
        else:
            text = "; ".join(f"worker {rank}: {text}" for rank, text in texts.items())
        parts.append(text)
    text = "<br>".join(f"{number}. {each}" for number, each in enumerate(parts, 1))
    text = text.removeprefix("1. ") if len(parts) == 1 else text
    wrong = disk_cases.violations(case, told, expected)
    return f"**Not held.** {text}" if wrong else text


def text_of(start, outcome, expected):
    """Return what one worker did in one start."""
    if outcome.error:
        message = ADDRESS.sub("", FOLDER.sub("…", outcome.message))
        return f"`{outcome.error}`: {reliability.short(message, LENGTH)}"
    if not outcome.digest:
        return "killed" if start.killed or start.fault else "**nothing is said**"
    weights = "the same weights" if outcome.digest == expected else "**other weights**"
    if outcome.first is None:
        return f"**trains no epoch**: {weights}"
    return (
        f"from {'the beginning' if not outcome.first else f'epoch {outcome.first + 1}'}: {weights}"
    )


def summary_of_disk(result):
    """Return a short summary of each start, from the stored result of a case."""
    if not result:
        return networks.NEVER
    parts = []
    cell = result["cell"].removeprefix("**Not held.** ")
    for part in re.sub(r"\*\*|\d\. ", "", cell).split("<br>"):
        errors = list(dict.fromkeys(re.findall(r"`(\w+)`: ", part)))
        text = part.removeprefix("all: ").removesuffix(": the same weights")
        text = text.replace("from the beginning", "starts over").replace("from", "resumes at")
        parts.append(", ".join(f"`{error}`" for error in errors) or text)
    if len(parts) > 1:
        parts = [f"{number}. {text}" for number, text in enumerate(parts, 1)]
    wrong = dict.fromkeys(re.sub(r"^.*, ", "", each) for each in result["not held"])
    return "; ".join(parts) + (f" (**no**: {', '.join(wrong)})" if wrong else "")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of cases.

    Attributes:
        name: the name in the document's markers and of the results file.
        cases: the module with the cases.
        stock: the name that the cases use for the stock strategy.
        header: the table's columns.
        cell: a function that describes the result of a case; its arguments are the case, the value
            that `cases.run` returned and the expected digest.
        summary: a function that returns a cell of the page for the stored result of a case.
        page: the page with the table.
    """

    name: str
    cases: types.ModuleType
    stock: str
    header: tuple
    cell: Callable
    summary: Callable
    page: pathlib.Path

    @property
    def kept(self):
        return report.RESULTS / f"{self.name}.json"

    def text(self, kept):
        rows = []
        for case in self.cases.CASES:
            told = [kept.get(case.name, {}).get(each) for each in (self.stock, "adasum")]
            rows.append([case.name, *map(self.summary, told)])
        return report.table(self.header, rows)

    def strategies(self, case):
        return [each for each in (self.stock, "adasum") if self.can_happen(case, each)]

    @staticmethod
    def can_happen(case, strategy):
        return strategy in getattr(case, "strategies", (strategy,))

    def write(self, kept):
        names = {case.name for case in self.cases.CASES}
        kept = {name: kept[name] for name in sorted(kept) if name in names}
        self.kept.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        generated = {self.name: self.text(kept)}
        self.page.write_text(generated_tables.rewritten(self.page.read_text(), generated))


TABLES = [
    Table(
        "unauthenticated_clients",
        client_cases,
        "stock",
        ("what the clients do", "stock TensorFlow", "tf_adasum"),
        cell_of_clients,
        networks.summary,
        PAGES / "unauthenticated_clients.md",
    ),
    Table(
        "disks",
        disk_cases,
        "keras",
        ("what happens to the disk", "`keras.callbacks.BackupAndRestore`", "tf_adasum"),
        cell_of_disk,
        summary_of_disk,
        PAGES / "disks.md",
    ),
]


def run(cases, case, strategy):
    with tempfile.TemporaryDirectory() as folder:
        return cases.run(case, folder, strategy=strategy)


@functools.cache
def _unbroken(cases, strategy):
    told = run(cases, cases.UNBROKEN, strategy)
    (outcomes,) = told if isinstance(told, list) else [told]
    digests = {outcome.digest for outcome in outcomes.values()}
    if len(digests) != 1 or None in digests:
        raise RuntimeError(f"the unbroken run fails: {outcomes}")
    return digests.pop()


def unbroken(cases, strategy):
    """Return the digest of a strategy's final weights in a run without faults."""
    with _digests:
        return _unbroken(cases, strategy)


def result(table, case, strategy, commit):
    expected = unbroken(table.cases, strategy)
    told = run(table.cases, case, strategy)
    return {
        "cell": table.cell(case, told, expected),
        "not held": table.cases.violations(case, told, expected),
        "commit": commit,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=[table.name for table in TABLES], help="only this one")
    parser.add_argument("--only", default="", help="pattern in the names of the cases")
    parser.add_argument("--strategy", choices=("adasum", "stock", "keras"), help="only this one")
    parser.add_argument("--at-once", type=int, default=2, help="how many cases at a time")
    arguments = parser.parse_args()
    commit = report.commit()  # before this script changes the page
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        for table in TABLES:
            kept = json.loads(table.kept.read_text()) if table.kept.exists() else {}
            is_wanted = arguments.table in (None, table.name)
            wanted = {
                pool.submit(result, table, case, strategy, commit): (case, strategy)
                for case in (table.cases.CASES if is_wanted else [])
                for strategy in table.strategies(case)
                if re.search(arguments.only, case.name) and arguments.strategy in (None, strategy)
            }
            for done in concurrent.futures.as_completed(wanted):
                case, strategy = wanted[done]
                told = done.result()
                kept.setdefault(case.name, {})[strategy] = told
                print(strategy, case.name, told["cell"], *told["not held"], sep="\n  ", flush=True)
                table.write(kept)
            table.write(kept)  # also if no case was run


if __name__ == "__main__":
    main()
