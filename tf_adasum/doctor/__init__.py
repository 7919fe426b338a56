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

import argparse
import functools
import os
from collections.abc import Sequence

from tf_adasum.doctor import cluster_report, error_help, exchange, installation
from tf_adasum.doctor.findings import Finding, has_failed, run
from tf_adasum.launch import commands

_EXAMPLES = (
    ("tf-adasum-doctor", "check this machine"),
    ("tf-adasum-doctor --explain TFA-501", "what to do about an error code"),
    ("tf-adasum-launch -n 2 -m tf_adasum.doctor", "check two workers and their connection"),
)
_END = f"""\
exit status: 0 if tf_adasum can be used, 1 if you have to do something first.

{commands.examples(_EXAMPLES)}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; with several workers, worker 0 prints the report of all workers.

    Args:
        arguments: the command line after the program's name. Defaults to ``sys.argv[1:]``.

    Returns:
        The exit status: 0 if tf_adasum can be used, 1 if you have to fix something first.

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
        try:
            print(error_help.answer(options.explain))
        except ValueError as error:
            parser.error(f"--explain: {error}")
        return 0
    # Hides TensorFlow's own messages. It writes those about oneDNN before it reads the level.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    surrounding, others = cluster_report.find(os.environ)
    look = functools.partial(diagnose, [surrounding])
    if others is None or others.num_workers == 1:
        return cluster_report.show([("", look())])
    return cluster_report.examine(others, look, exchange.check_exchange)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = commands.Parser(
        prog="tf-adasum-doctor",
        description="Report what is installed, built and visible. If you start it as several "
        "workers, it also\nreports whether they reach each other and combine gradients.",
        epilog=_END,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
