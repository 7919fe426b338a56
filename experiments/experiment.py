"""What an experiment declares; everything else is common to all experiments."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Case = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What was found about a claim in one training.

    Attributes:
        word: "confirmed", "partly", "unconfirmed", "refuted", or another single word.
        training: the training, in words.
        numbers: the numbers that the verdict rests on, by the heading of their column.
    """

    word: str
    training: str
    numbers: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim with a verdict for each training that tested it.

    Attributes:
        text: the claim.
        source: where it is published.
        verdicts: of all trainings.
    """

    text: str
    source: str
    verdicts: Sequence[Verdict]

    @property
    def word(self) -> str:
        """The verdict on all trainings together, in one word."""
        words = {own.word for own in self.verdicts}
        if len(words) == 1:
            return words.pop()
        return "mixed" if words - {"confirmed", "partly"} else "partly"


@dataclasses.dataclass
class Report:
    """What the pages show about an experiment.

    Attributes:
        claims: each with its verdicts.
        body: tables and figures, in Markdown.
    """

    claims: list[Claim]
    body: str


class Experiment:
    """Tests the main results of a paper at our size.

    Attributes:
        name: as the command line and files have it.
        title: of its section of the page.
        packages: what has to be installed for its data, besides those of the package.
        has_runs: whether it has runs of its own.
    """

    name: str
    title: str
    packages: tuple[str, ...] = ()
    has_runs = True

    @property
    def folder(self) -> pathlib.Path:
        """The folder of its runs."""
        return pathlib.Path(__file__).parent / self.name

    def small(self) -> "Experiment":
        """Return the same at a size that takes seconds; itself if it has no runs."""
        return self

    def stages(self, results) -> Iterable[list[Case]]:
        """Yield the cases that are needed, each list for results that the lists before have.

        A pure function of the results: a program that is killed and started again ends with the
        same ones.
        """
        return ()

    def plan(self, results) -> list[Case]:
        """Return the cases that are needed as far as the results tell; finished ones may be there.

        The frame runs the missing cases and asks again, until none is missing.
        """
        cases = []
        for stage in self.stages(results):
            cases += stage
            if any(case not in results for case in stage):
                break
        return cases

    def is_finished(self, results) -> bool:
        """Return whether all runs are there."""
        return all(case in results for case in self.plan(results))

    def run(self, case: Case) -> dict[str, Any]:
        """Return the numbers of one run, and small curves; what JSON can hold."""
        raise NotImplementedError

    def report(self, results, figures) -> Report:
        """Return the part of the page, when all runs are there.

        Args:
            results: the `Results`.
            figures: a `figures.Figures`, which saves pictures and returns links to them.
        """
        raise NotImplementedError
