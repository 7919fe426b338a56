"""Report the errors of the other workers if one fails, under stock TensorFlow and this package.

    python benchmarks/reliability.py [--limit SECONDS] [--transport ucx] [--only TEXT]

Two workers train; the fault is injected into one of them in the middle of the first epoch, or at
the moment that the row names. Stock is `tf.distribute.MultiWorkerMirroredStrategy` with a custom
training loop, because its `fit` fails on several workers in any case. All timeouts are the
defaults. This script kills a worker that reports nothing within the limit.

With another transport, stock TensorFlow is left out, and the name of the report includes the
transport. Writes benchmarks/results/DATE-reliability.md.
"""

import argparse
import os
import pathlib
import tempfile

import report
from support import faults

STARTUP_TIMEOUT = 300.0  # limit from the start to the fault, on a busy machine

# What happens to a worker: the fault, where it is injected, and other options of `faults.run`.
FAULTS = {
    "SIGKILL in a step": ("kill", "step", {}),
    "SIGKILL of worker 0 in a step": ("kill", "step", {"victim": 0}),
    "SIGKILL in an exchange": ("kill", "exchange", {}),
    "SIGKILL of worker 0 in a checkpoint": ("kill", "checkpoint", {"victim": 0}),
    "SIGKILL in TensorFlow's start-up": ("kill", "start", {}),
    "SIGKILL of worker 0 in it": ("kill", "start", {"victim": 0}),
    "SIGTERM in a step": ("term", "step", {}),
    "SIGSTOP in a step": ("stop", "step", {}),
    "a callback raises, the process ends": ("raise", "step", {}),
    "a callback raises, the process stays": ("raise", "step", {"lingers": True}),
    "a generator raises, the process ends": ("raise", "data", {}),
    "a generator raises, the process stays": ("raise", "data", {"lingers": True}),
    "Ctrl-C on one worker": ("interrupt", "step", {}),
    "the script ends early": ("exit", "epoch", {}),
    "alive, but does not come, `timeout_seconds=30`": ("sleep", "step", {"timeout": 30}),
    "alive, does not build the model, `timeout_seconds=30`": ("sleep", "build", {"timeout": 30}),
}


def said(outcome, limit):
    """Return a cell: the error of a worker and its time, and when its process ended."""
    if outcome.seconds_to_end is None and outcome.error is None:
        return f"**nothing within {limit:.0f} s**"
    end = (
        "its process stays"
        if outcome.seconds_to_end is None
        else f"ends after {outcome.seconds_to_end:.1f} s"
    )
    guard = [line for line in outcome.output.splitlines() if "in TensorFlow's start-up" in line]
    if guard:
        return f"{short(guard[-1].removeprefix('tf_adasum: '))}; {end}"
    if outcome.error is None:
        return f"**trains to the end as if nothing had happened**; {end}"
    return f"{outcome.seconds:.1f} s: `{outcome.error}`: {short(outcome.message)}; {end}"


def short(message, length=160):
    """Return the first informative line of a message, for a cell of a table."""
    lines = [line.strip() for line in message.splitlines()]
    telling = [
        line
        for line in lines
        if line and not line.startswith(("Graph execution error", "Detected at", "File ", "<stack"))
    ]
    text = (telling or ["-"])[0].replace("|", "/").replace("`", "'")
    return text if len(text) <= length else text[:length] + "…"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=75.0)
    parser.add_argument("--transport", choices=["tensorflow", "ucx"], default="tensorflow")
    parser.add_argument("--only", default="", help="text in the names of the faults")
    arguments = parser.parse_args()
    limit, transport = arguments.limit, arguments.transport
    os.environ["TF_ADASUM_TRANSPORT"] = transport
    is_default = transport == parser.get_default("transport")
    columns = {"stock": "the other under stock TensorFlow"} if is_default else {}
    columns["adasum"] = "under tf_adasum" if is_default else f"the other, `transport={transport!r}`"
    rows = []
    for name, (fault, point, more) in FAULTS.items():
        if arguments.only not in name:
            continue
        row = [name]
        for strategy in columns:
            with tempfile.TemporaryDirectory() as folder:
                options = {"fault": fault, "injection_point": point, "limit": limit, **more}
                (outcome,) = faults.run(
                    folder, strategy=strategy, coming=STARTUP_TIMEOUT, **options
                ).values()
                came = pathlib.Path(folder, "time").exists()
            row.append(said(outcome, limit) if came else "(not injected: the fault did not come)")
        print(*row, sep="\n  ", flush=True)
        rows.append(row)
    stock = (
        "Stock is `tf.distribute.MultiWorkerMirroredStrategy` with a training loop of its own, "
        "because its `fit` fails on several workers in any case. "
    )
    report.write(
        "reliability" if is_default else f"reliability_{transport}",
        "What the other worker says",
        "Two workers of one device; seconds are from the fault to the exception, and to the end of "
        f"the process. {stock if is_default else ''}Default timeouts, unless the row says "
        f"otherwise.\n\n{report.table(['what happens to one worker', *columns.values()], rows)}",
    )


if __name__ == "__main__":
    main()
