"""What an experiment declares; the rest is the frame's."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

Case = Mapping[str, Any]


@dataclasses.dataclass
class Report:
    """What a page says of an experiment.

    Attributes:
        verdicts: for each claim a tuple: the claim, where it is published, the verdict.
        body: tables and figures, in Markdown.
    """

    verdicts: list[tuple[str, str, str]]
    body: str


class Experiment:
    """A headline of a paper at our size.

    Attributes:
        name: as the command line and files have it.
        title: of its section of the page.
        packages: what has to be installed for its data, besides those of the package.
        is_played: whether it has runs of its own.
    """

    name: str
    title: str
    packages: tuple[str, ...] = ()
    is_played = True

    @property
    def folder(self) -> pathlib.Path:
        """Where its lines are."""
        return pathlib.Path(__file__).parent / self.name

    def small(self) -> "Experiment":
        """Return the same at a size that takes seconds."""
        raise NotImplementedError

    def plan(self, results) -> list[Case]:
        """Return the cases that are needed as far as the results tell; finished ones may be there.

        The frame plays what is missing and asks again, until nothing is. A pure function of the
        results: a program that is killed and started again ends with the same ones.
        """
        raise NotImplementedError

    def play(self, case: Case) -> dict[str, Any]:
        """Return the numbers of one run, and small curves; what JSON can hold."""
        raise NotImplementedError

    def report(self, results, figures) -> Report:
        """Return the part of the page.

        Args:
            results: the `Results`.
            figures: a `figures.Figures`, which saves pictures and returns links to them.
        """
        raise NotImplementedError
