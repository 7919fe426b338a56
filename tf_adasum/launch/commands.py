"""Options that all commands of this package share. Uses only the standard library."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from tf_adasum._version import __version__

SHELLS = ("bash", "zsh")


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--version`` and ``--print-completion`` to the parser of a command."""
    parser.add_argument(
        "--version",
        action=_Version,
        help="print the versions of tf_adasum, TensorFlow and Python, and exit",
    )
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=SHELLS,
        help="print a script for the shell's tab completion, and exit (needs the package shtab)",
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


class Removed(argparse.Action):
    """An option that was removed. Its error ends with `const`, the advice what to use."""

    def __init__(self, **options: Any):
        super().__init__(help=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the error and exit with status 2."""
        parser.error(f"{self.option_strings[-1]} was removed. {self.const}")


def examples(commands: Iterable[tuple[str, str]]) -> str:
    """Return the examples of a ``--help`` text, for `argparse.RawDescriptionHelpFormatter`.

    Args:
        commands: pairs of a command and its description.
    """
    return "examples:\n" + "\n".join(f"  {command}\n      {does}" for command, does in commands)


def versions() -> str:
    """Return the versions that an issue report needs, without importing TensorFlow."""
    from importlib import metadata  # slow to import, and needed for nothing else

    found = []
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            found.append(f"TensorFlow {metadata.version(name)}")
            break
        except metadata.PackageNotFoundError:
            pass
    python = ".".join(map(str, sys.version_info[:3]))
    return f"tf_adasum {__version__} ({', '.join([*found, f'Python {python}'])})"


class _Version(argparse.Action):
    def __init__(self, **options: Any):
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(versions())
        parser.exit()


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
        try:
            shtab: Any = importlib.import_module("shtab")
        except ModuleNotFoundError:
            parser.error("--print-completion needs the package shtab: pip install shtab")
        for action in parser._actions:
            if isinstance(action.metavar, str):  # zsh treats the text after a colon as a command
                action.metavar = action.metavar.replace(":", " ")
            if action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            if action.nargs == argparse.REMAINDER:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
                action.help = "script and its arguments"  # shtab leaves out arguments without help
        print(shtab.complete(parser, shell))
        parser.exit()
