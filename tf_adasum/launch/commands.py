"""Options that all commands of this package share. Uses only the standard library."""

import argparse
import contextlib
import difflib
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import NoReturn

from tf_adasum._version import __version__


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--version`` to the parser of a command."""
    parser.add_argument(
        "--version",
        action="version",
        version=_versions(),
        help="print the versions of tf_adasum, TensorFlow and Python, and exit",
    )


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose error about an unknown option names the most similar option."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with status 2."""
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        known = [name for action in self._actions for name in action.option_strings]
        for similar in difflib.get_close_matches(unknown.partition("=")[0], known, n=1):
            message += f". Do you mean {similar}?"
        super().error(message)


def examples(commands: Iterable[tuple[str, str]]) -> str:
    """Return the examples of a ``--help`` text, for `argparse.RawDescriptionHelpFormatter`.

    Args:
        commands: pairs of a command and its description.
    """
    return "examples:\n" + "\n".join(f"  {command}\n      {does}" for command, does in commands)


def _versions() -> str:
    """Return the versions that an issue report needs, without importing TensorFlow."""
    tensorflow = installed_version("tensorflow", "tensorflow-cpu")
    found = [f"TensorFlow {tensorflow}"] if tensorflow else []
    python = ".".join(map(str, sys.version_info[:3]))
    return f"tf_adasum {__version__} ({', '.join([*found, f'Python {python}'])})"


def installed_version(*names: str) -> str:
    """Return the version of the first of some packages that is installed; "" if none is."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""
