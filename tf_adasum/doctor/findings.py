"""The findings of the doctor: lines of its report, and how to fix them. Standard library only."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum._version import INSTALL_BOTH

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "FAIL"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report: the result of a check, and the fix if it needs one.

    Attributes:
        level: `OK`, `NOTE`, `WARN` or `FAIL`.
        subject: what was checked, such as "keras".
        text: the result.
        fix: what to do about it. Defaults to None: nothing.
        facts: the result for programs: names and values, JSON types. Defaults to no facts.
    """

    level: str
    subject: str
    text: str
    fix: str | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        """Return the line of the report, with the fix below it."""
        line = f"{self.level:<4}  {self.subject:<12}  {self.text}"
        return line if self.fix is None else f"{line}\n{'':<20}-> {self.fix}"


Check = Callable[[], list[Finding]]


def run(check: Check) -> list[Finding]:
    """Run one check; what it did not expect becomes a finding instead of a traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks report the same as findings
            return check()
    except Exception as error:  # whatever it is, the remaining checks are still worth running
        subject = check.__name__.removeprefix("check_")
        return [
            Finding(
                FAIL,
                subject,
                f"could not be checked: {describe(error)}",
                f"follow that message; if it does not help: {INSTALL_BOTH}",
            )
        ]


def describe(error: BaseException) -> str:
    """Name an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
