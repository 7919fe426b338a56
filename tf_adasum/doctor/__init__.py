"""The doctor reports what is installed, built or missing, and whether workers reach each other.

    tf-adasum-doctor                        check this machine
    tf-adasum-launch -n 2 -m tf_adasum.doctor     check several workers, with any launcher
    tf-adasum-doctor --explain TFA-501      print what to do about a message

Reading order: `main` (command line) -> `installation` (checks of one worker, as `findings`) ->
`cluster_report` (the steps of several workers). `error_help` reads docs/troubleshooting.md, the
page with an answer for each code.

At their import, these modules need only the standard library. TensorFlow may be broken, so it is
imported later, inside the checks.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from tf_adasum.doctor import cluster_report, error_help, exchange, installation
from tf_adasum.doctor.findings import FAIL, WARN, Finding, has_failed, report_of, run
from tf_adasum.launch import commands

_EXAMPLES = (
    ("tf-adasum-doctor", "check this machine"),
    ("tf-adasum-doctor --explain TFA-501", "what to do about an error code"),
    ("tf-adasum-launch -n 2 -m tf_adasum.doctor", "check two workers and their connection"),
)
_END = f"""\
exit status: 0 if tf_adasum can be used, 1 if you have to do something first.

{commands.examples(_EXAMPLES)}"""
# Seconds after which a worker always ends, so that nothing hangs.
_SECONDS_IN_ALL = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; with several workers, worker 0 prints the report of all workers.

    Args:
        arguments: the command line after the program's name. Defaults to ``sys.argv[1:]``.

    Returns:
        The exit status: 0 if tf_adasum can be used, 1 if you have
        to fix something first.

    Raises:
        SystemExit: with status 2 and a message on stderr for unknown arguments; with status 0 for
            ``--help``.

    Example:
        >>> main([])  # takes half a minute, and depends on the machine  # doctest: +SKIP
        0
    """
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.explain is not None:
        return _explain(parser, options.explain)
    # Hides TensorFlow's own messages. It writes those about oneDNN before it reads the level.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    surrounding, others = cluster_report.find(os.environ)

    def look() -> list[Finding]:
        return diagnose([surrounding])

    def show(reports: list[dict[str, Any]]) -> int:
        return _print(reports, options.json)

    if others is None or others.num_workers == 1:
        return show([report_of(look())])
    faulthandler.dump_traceback_later(_SECONDS_IN_ALL, exit=True)
    try:
        return cluster_report.examine(others, look, exchange.check_exchange, show)
    finally:
        faulthandler.cancel_dump_traceback_later()


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = commands.Parser(
        prog="tf-adasum-doctor",
        description="Report what is installed, built and visible. If you start it as several "
        "workers, it also\nreports whether they reach each other and combine gradients.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--explain", metavar="CODE", help="print what to do about a message that ends with CODE"
    )
    commands.add_common_options(parser)
    return parser


def diagnose(surrounding: Sequence[Finding] = ()) -> list[Finding]:
    """Run the checks of this worker. Without TensorFlow, run only the checks that do not use it.

    Args:
        surrounding: the findings about a cluster. Defaults to no findings.
    """
    findings = run(installation.check_python)
    imported = run(installation.check_tensorflow)
    findings += [*surrounding, *imported]
    if has_failed(imported):
        return findings
    of_keras = run(installation.check_keras)
    for check in (
        *([] if has_failed(of_keras) else [installation.check_hooks]),
        installation.check_devices,
        installation.check_custom_op,
        installation.check_ucx,
        installation.check_arithmetic,
    ):
        of_keras += run(check)
    return findings + of_keras


def _explain(parser: argparse.ArgumentParser, code: str) -> int:
    try:
        print(error_help.answer(code))
    except ValueError as error:
        parser.error(f"--explain: {error}")
    return 0


def _print(reports: list[dict[str, Any]], as_json: bool) -> int:
    """Print the findings of this worker, and what is wrong on the others."""
    own, *others = reports
    usable = all(each["usable"] for each in reports)
    if as_json:
        cluster = {"workers": reports} if others else None
        print(json.dumps({**own, "usable": usable, "cluster": cluster}, indent=2))
    else:
        for finding in own["findings"]:
            print(Finding(**finding))
        for each in others:
            print(f"{'ok' if each['usable'] else FAIL:<4}  {each['name']} on {each['host']}")
            for finding in each["findings"]:
                if finding["level"] in (WARN, FAIL):
                    print(Finding(**finding))
    sys.stdout.flush()
    return int(not usable)
