"""The findings of the doctor, which are the lines of its report.

Uses only the standard library.
"""

from __future__ import annotations

import dataclasses
import socket
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tf_adasum._version import INSTALL_BOTH

OK, NOTE, WARN, FAIL = "ok", "note", "warn", "FAIL"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report: the result of a check, and what to fix.

    Attributes:
        level: `OK`, `NOTE`, `WARN` or `FAIL`.
        subject: what was checked, such as "keras".
        text: the result.
        fix: what the user has to do. Defaults to None: nothing.
        facts: the result for programs: a mapping from names to values of JSON types. Defaults to no
            facts.
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
    """Run one check; an unexpected exception becomes a finding instead of a traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks report the same as findings
            return check()
    except Exception as error:  # of any class, because the other checks are still useful
        subject = check.__name__.removeprefix("check_")
        return [
            Finding(
                FAIL,
                subject,
                f"could not be checked: {describe(error)}",
                f"do what the message asks; if that does not help: {INSTALL_BOTH}",
            )
        ]


def describe(error: BaseException) -> str:
    """Return the name of an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def has_failed(findings: list[Finding]) -> bool:
    """Return whether a finding has the level `FAIL`."""
    return any(finding.level == FAIL for finding in findings)


def report_of(findings: list[Finding]) -> dict[str, Any]:
    """Return the facts and findings of one worker as a report of JSON types."""
    facts = {name: value for finding in findings for name, value in finding.facts.items()}
    listed = [
        {"level": each.level, "subject": each.subject, "text": each.text, "fix": each.fix}
        for each in findings
    ]
    usable = not has_failed(findings)
    return {"usable": usable, "host": socket.gethostname(), **facts, "findings": listed}
