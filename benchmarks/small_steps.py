"""Time the steps of small models on 2 and 4 workers: the stock strategy, Horovod, tf_adasum.

    python benchmarks/small_steps.py

Each worker runs on its own share of the cores, or all workers run on all cores. Set HOROVOD_PYTHON
as for frameworks.py. Writes benchmarks/results/DATE-small_steps.md.
"""

import argparse
import collections

import frameworks
import numpy as np
import report

SIZES = ("small", "1 MB", "4 MB")
STEPS = frameworks.STEPS["small"]
KINDS = ("horovod", "stock", "tf_adasum", "tf_adasum_mean")


def measured(workers, turns, kinds):
    """Return the measurements of each turn, for each kind and each binding."""
    found = collections.defaultdict(list)
    cases = [(kind, bind_to) for kind in kinds for bind_to in ("cores", "none")]
    for turn in range(turns):
        for kind, bind_to in cases if turn % 2 == 0 else reversed(cases):
            count = 1 if kind == "one" else workers
            own = frameworks.times(kind, count=count, sizes=SIZES, bind_to=bind_to, calls=True)
            found[kind, bind_to].append(own)
            print(workers, kind, bind_to, own, flush=True)
    return found


def seconds(turns, size, call):
    """Return the seconds of a step in all epochs of all turns."""
    return [each for turn in turns for each in turn[size][call]]


def rows(workers, found):
    """Yield one row for each kind and each binding."""
    for (kind, bind_to), turns in found.items():
        row = [1 if kind == "one" else workers, frameworks.FRAMEWORKS[kind], bind_to]
        row += [report.quartiles(seconds(turns, size, "seconds"), 1000, 1) for size in SIZES]
        for other in ("horovod", "stock"):
            row.append(ratio(found, kind, bind_to, other))
        for call in ("evaluate", "predict"):
            row.append(report.quartiles(seconds(turns, "small", call), 1000, 1))
        yield row


def ratio(found, kind, bind_to, other):
    """Return the small model's ratio of medians in each turn: its median (lowest..highest)."""
    if not found.get((other, bind_to)):
        return ""
    ratios = [
        np.median(own["small"]["seconds"]) / np.median(theirs["small"]["seconds"])
        for own, theirs in zip(found[kind, bind_to], found[other, bind_to], strict=True)
    ]
    return f"{np.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    kinds = [each for each in (*KINDS, "one") if frameworks.is_present(each)]
    body = []
    for workers in arguments.workers:
        body += rows(workers, measured(workers, arguments.turns, kinds))
    header = ["workers", "framework", "bound to", *(f"{size}, ms" for size in SIZES)]
    header += ["small / Horovod", "small / stock", "evaluate, ms", "predict, ms"]
    report.write(
        "small_steps",
        "Steps of small models, with workers bound to cores and not",
        "*Small*: a CNN of 13,706 parameters; *1 MB* and *4 MB*: dense models of so many bytes of "
        f"parameters; {frameworks.ROWS['small']} rows of each worker, SGD. *Bound to cores*: each "
        "worker runs on its own share of the cores, as `tf-adasum-launch` and `mpirun` arrange it "
        "for up to as many workers as cores; more workers share a core. *None*: all workers run "
        f"on all cores. Milliseconds of a step of `fit` on worker 0: means of {STEPS} steps in "
        f"{frameworks.EPOCHS - 1} epochs of each of {arguments.turns} runs in which the frameworks "
        "take turns, here their median (quartiles). Ratios: of the medians of a turn, median "
        "(lowest..highest). `evaluate` and `predict`: a whole call with the small model, divided "
        f"by its {frameworks.WARM_UP + STEPS} steps. The stock strategy has a fix of `reduce`. "
        f"{frameworks.version_of('horovod') if 'horovod' in kinds else 'No Horovod'}.\n\n"
        + report.table(header, body),
    )


if __name__ == "__main__":
    main()
