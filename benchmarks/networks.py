"""Report what workers on several hosts do when the network between them is slow, lossy or cut.

    python benchmarks/networks.py [--only PATTERN] [--strategy adasum] [--at-once 4]

Runs the cases of tests/support/network_cases.py, each on separate hosts (network namespaces of this
machine: needs root). Each case runs under stock TensorFlow with a custom training loop, because its
`fit` fails on several workers in any case, and under this package: with TF_CONFIG, and joined
through worker 0's address. All timeouts are the defaults.

Writes the table in benchmarks/results/networks.md. Cases that are not selected keep their results:
all results, with the complete messages, are in benchmarks/results/networks.json.
"""

import argparse
import json
import multiprocessing
import re
import signal
import sys
import tempfile

import generated_tables
import reliability
import report
from support import network, network_cases

STRATEGIES = ("adasum", "joined", "stock")
COLUMNS = {
    "stock": "stock TensorFlow",
    "adasum": "tf_adasum",
    "joined": "tf_adasum, joined through worker 0",
}
KEPT = report.RESULTS / "networks.json"
PAGE = report.RESULTS / "networks.md"
NEVER = "–"
# Matches the seconds in a cell, after the name of each worker.
SECONDS = re.compile(r"(?:^|all: |worker \d: |Not held\.\*\* )(\d+) s: |weights after (\d+) s")
# Addresses of workers and names of TensorFlow's functions are removed from messages.
NOISE = re.compile(r" \((?:\[?[\w.:-]+\]?):\d+\)|\{\{function_node [^}]*\}\} ")

# The state of a process of the pool, which runs one case after the other: the lock, and pairs of
# case and strategy.
_starting, _wanted = None, ()


def end(number, frame):
    """Exit, so that cleanup code runs."""
    sys.exit(128 + number)


def with_unbroken(cases):
    """Return the cases, and before them the undisturbed runs, which give the expected weights."""
    return [*map(network_cases.unbroken, cases), *cases]


def share(starting, wanted):
    """Prepare a process of the pool: a lock limits how many cases start at the same time."""
    global _starting, _wanted
    _starting, _wanted = starting, wanted
    signal.signal(signal.SIGTERM, end)


def run(number):
    """Run one of the wanted cases; return a dict from ranks to `faults.Outcome`."""
    case, strategy = _wanted[number]
    has_started = []

    def on_start():
        if not has_started:
            has_started.append(True)
            _starting.release()

    _starting.acquire()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return network_cases.run(case, folder, strategy=strategy, on_start=on_start)
    finally:
        on_start()


def cell(case, outcomes, expected):
    """Return what the workers did. Wrong behaviour is bold."""
    texts = {rank: text_of(outcome, expected) for rank, outcome in outcomes.items()}
    wrong = network_cases.violations(case, outcomes, expected)
    if len({re.sub(r"\d", "", text) for text in texts.values()}) == 1:
        text = texts[max(texts)] if len(texts) == 1 else f"all: {texts[min(texts)]}"
    else:
        text = "; ".join(f"worker {rank}: {text}" for rank, text in texts.items())
    return f"**Not held.** {text}" if wrong else text


def text_of(outcome, expected):
    seconds = network_cases.seconds_of(outcome)
    words = NOISE.sub("", network_cases.last_output(outcome))
    if outcome.digest:
        weights = "the same weights" if outcome.digest == expected else "**other weights**"
        return f"{weights} after {seconds:.0f} s"
    if not words:
        return "**nothing is said**"
    if outcome.error:
        words = f"`{outcome.error}`: " + reliability.short(words.partition(": ")[2], 110)
    return f"{seconds:.0f} s: {words}"


def summary(result):
    """Return a short summary of the stored result of a case."""
    if not result:
        return NEVER
    found = sorted(int(own or other) for own, other in SECONDS.findall(result["cell"]))
    seconds = " to ".join(map(str, dict.fromkeys(found[:1] + found[-1:])))
    after = f", {seconds} s" if found else ""
    if result["not held"]:
        wrong = dict.fromkeys(re.sub(r"^worker \d ", "", each) for each in result["not held"])
        return f"**no**{after}: {', '.join(wrong)}"
    return f"{'error' if 'Error' in result['cell'] else 'trains on'}{after}"


def table(kept):
    """Return the table of all cases, from the stored results."""
    rows = []
    for case in network_cases.CASES:
        results = [kept.get(case.name, {}).get(strategy) for strategy in COLUMNS]
        rows.append([case.name, *map(summary, results)])
    return report.table(["what happens", *COLUMNS.values()], rows)


def write(kept):
    names = {case.name for case in network_cases.CASES}
    kept = {name: kept[name] for name in sorted(kept) if name in names}
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(generated_tables.rewritten(PAGE.read_text(), {"networks": table(kept)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="pattern in the names of the cases")
    parser.add_argument("--strategy", choices=STRATEGIES, help="only this one")
    parser.add_argument("--at-once", type=int, default=4, help="how many cases at a time")
    parser.add_argument("--starting", type=int, default=1, help="how many of them may start")
    arguments = parser.parse_args()
    if reason := network.reason_to_skip():
        sys.exit(f"cannot create network namespaces: {reason}")
    strategies = [arguments.strategy] if arguments.strategy else STRATEGIES
    cases = [case for case in network_cases.CASES if re.search(arguments.only, case.name)]
    cases_of = {
        each: [case for case in cases if not (case.port and each == "joined")]
        for each in strategies
    }
    pairs = [
        (case, strategy) for strategy in strategies for case in with_unbroken(cases_of[strategy])
    ]
    wanted = list(dict.fromkeys(pairs))
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    signal.signal(signal.SIGTERM, end)
    fork = multiprocessing.get_context("fork")
    starting = fork.Semaphore(arguments.starting)
    # However this block ends, the pool's processes end, and they end the processes they started.
    with fork.Pool(arguments.at_once, share, [starting, wanted]) as pool:
        done = {pair: pool.apply_async(run, [n]) for n, pair in enumerate(wanted)}
        for strategy in strategies:
            for case in cases_of[strategy]:
                whole = done[network_cases.unbroken(case), strategy].get()
                digests = {outcome.digest for outcome in whole.values()}
                expected = digests.pop() if len(digests) == 1 else None
                outcomes = done[case, strategy].get()
                told = {
                    "cell": cell(case, outcomes, expected),
                    "not held": network_cases.violations(case, outcomes, expected),
                    "commit": report.commit(),
                }
                kept.setdefault(case.name, {})[strategy] = told
                print(strategy, case.name, told["cell"], *told["not held"], sep="\n  ", flush=True)
                write(kept)
    write(kept)  # also if no case was run


if __name__ == "__main__":
    main()
