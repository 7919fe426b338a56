"""Measure the steps of `fit` if one worker or one link is slow, and check `StragglerReport`.

    python benchmarks/uneven_hosts.py [--mbit 1000] [--slow-mbit 100] [--steps 20] [--epochs 4]

Trains on four hosts with one worker each (see slow_links.py); needs root. First all hosts are
equal, then worker 2 sleeps in each step, and then the link of host 2 is slow. With the slow link,
this script also runs `tf-adasum-doctor`. Writes benchmarks/results/DATE-uneven_hosts.md.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import time

import frameworks
import numpy as np
import report
import slow_links

SIZE = "4 MB"
ODD = 2  # the slow worker, and the number of the host with the slow link
EQUAL, SLOW_WORKER = "all equal", f"worker {ODD} sleeps"
SLOW_LINK, BFLOAT16 = f"slow link of host {ODD}", f"slow link of host {ODD}, bfloat16"
# The right `slowest_worker` of each case; -1 if no worker is slow.
EXPECTED = {EQUAL: -1, SLOW_WORKER: ODD, SLOW_LINK: -1, BFLOAT16: -1}
SECONDS = 400  # limit for the workers on one kind of links


def trained(strategy, epochs, steps, sleep=0.0):
    """Train with `StragglerReport`; return its values after the first epoch, and what it prints."""
    import keras

    import tf_adasum

    straggler_report = tf_adasum.callbacks.StragglerReport()
    pause = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: time.sleep(sleep)
    )
    model = frameworks.compiled(SIZE, strategy.scope, lambda optimizer: optimizer)
    rows = frameworks.ROWS[SIZE] * strategy.num_replicas_in_sync
    x, y = frameworks.rows_of(SIZE, rows * steps)
    options = {"batch_size": rows, "shuffle": False, "verbose": 0, "epochs": epochs}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        model.fit(x, y, callbacks=[straggler_report, pause], **options)
    values = straggler_report.values[1:]
    return {
        "step_ms": [float(np.median(value["step_ms"])) for value in values],
        "waiting_ms": [value["waiting_ms"].tolist() for value in values],
        "slowest": [value["slowest"] for value in values],
        "printed": printed.getvalue().strip(),
    }


def work(has_slow_link, epochs, steps):
    """Return what `trained` returns for each case of these links."""
    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy(transport="ucx")
    if has_slow_link:
        halved = tf_adasum.AdasumMirroredStrategy(transport="ucx", wire_dtype="bfloat16")
        cases = {SLOW_LINK: trained(strategy, epochs, steps)}
        cases[BFLOAT16] = trained(halved, epochs, steps)
    else:
        cases = {EQUAL: trained(strategy, epochs, steps)}
        is_odd = os.environ["TF_ADASUM_RANK"] == str(ODD)
        sleep = np.median(cases[EQUAL]["step_ms"]) / 1000 if is_odd else 0.0
        cases[SLOW_WORKER] = trained(strategy, epochs, steps, sleep)
    return cases


def row_of(case, found):
    """Return the row of a case."""
    step, waiting = found["step_ms"], np.median(found["waiting_ms"], axis=0)
    right = found["slowest"].count(EXPECTED[case])
    return [
        case,
        f"{np.median(step):.0f} ({min(step):.0f}..{max(step):.0f})",
        ", ".join(f"{value:.0f}" for value in waiting),
        ", ".join(map(str, found["slowest"])),
        f"{right} of {len(step)}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--slow-mbit", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20, help="steps of an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="of each case; the first one traces")
    parser.add_argument("--has-slow-link", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        found = work(arguments.has_slow_link, arguments.epochs, arguments.steps)
        if os.environ["TF_ADASUM_RANK"] == "0":
            pathlib.Path(arguments.out).write_text(json.dumps(found))
        return
    if arguments.epochs < 2:
        parser.error("--epochs must be at least 2, because the first one traces")
    if reason := slow_links.missing():
        raise SystemExit(reason)
    options = ("--steps", str(arguments.steps), "--epochs", str(arguments.epochs))
    equal = slow_links.on_links(arguments.mbit, __file__, *options, seconds=SECONDS)
    uneven = slow_links.on_links(
        arguments.mbit,
        __file__,
        *("--has-slow-link", *options),
        seconds=SECONDS,
        exceptions={ODD: arguments.slow_mbit},
    )
    cases = equal | uneven
    header = ["case", "step, ms", f"waiting_ms of workers 0 to {slow_links.WORKERS - 1}"]
    header += ["slowest_worker", "right"]
    lines = [f"- {case}: {found['printed'] or '(nothing)'}" for case, found in cases.items()]
    report.write(
        "uneven_hosts",
        "Slow and uneven hosts",
        f"{slow_links.WORKERS} workers, each on a separate host (a network namespace) whose link "
        f"`tc tbf` limits to {arguments.mbit} Mbit/s in both directions; all share this machine's "
        f"cores. A dense model of {SIZE} of parameters, {frameworks.ROWS[SIZE]} rows of each "
        "worker, SGD, Adasum over UCX, plain `fit` with `StragglerReport`. *Sleeps*: a callback of "
        f"worker {ODD} sleeps in each step for as long as the median step when all hosts are "
        f"equal. *Slow link*: {arguments.slow_mbit} Mbit/s in both directions. *Step*: median "
        f"(lowest..highest) of the medians of {arguments.epochs - 1} epochs of {arguments.steps} "
        "steps, as the callback logs them; an epoch before them traces. *waiting_ms*: median of "
        "these epochs for each worker. *slowest_worker*: the rank that the callback logs in each "
        "epoch, -1 if it names no worker. *Right*: epochs in which it is the slow worker, or -1 if "
        "no worker is slow. A slow link is not a slow worker.\n\n"
        + report.table(header, [row_of(case, found) for case, found in cases.items()])
        + "\n\n## Printed at the end of training\n\n"
        + "\n".join(lines),
    )


if __name__ == "__main__":
    main()
