"""The findings of the doctor, which are the lines of its report.

Uses only the standard library.
"""

import dataclasses
import warnings
from collections.abc import Callable

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
    """

    level: str
    subject: str
    text: str
    fix: str | None = None

    def __str__(self) -> str:
        """Return the line of the report, with the fix below it."""
        line = f"{self.level:<4}  {self.subject:<12}  {self.text}"
        return line if self.fix is None else f"{line}\n{'':<20}-> {self.fix}"


def run(check: Callable[[], list[Finding]]) -> list[Finding]:
    """Run one check; an unexpected exception becomes a finding instead of a traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks report the same as findings
            return check()
    except Exception as error:  # of any class, because the other checks are still useful
        fix = f"do what the message asks; if that does not help: {INSTALL_BOTH}"
        text = f"could not be checked: {describe(error)}"
        return [Finding(FAIL, check.__name__.removeprefix("check_"), text, fix)]


def describe(error: BaseException) -> str:
    """Return the name of an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def has_failed(findings: list[Finding]) -> bool:
    """Return whether a finding has the level `FAIL`."""
    return any(finding.level == FAIL for finding in findings)
