"""Run the missing cases, and say how many are left."""

import sys
import time

from experiments.results import key_of


class Progress:
    """A line every minute, and at the end."""

    def __init__(self, name):
        self.name, self.last = name, 0.0

    def show(self, done, total, seconds_left):
        """Print it."""
        if time.monotonic() - self.last > 60 or done == total:
            self.last = time.monotonic()
            text = f"{self.name} {done}/{total} runs, {duration(seconds_left)} left"
            print(text, file=sys.stderr, flush=True)


def duration(seconds):
    """Return "1 h 05 min", "5 min" or "12 s"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def pending_cases(experiment, results):
    """Return the cases of the plan that have no result, each once."""
    cases = {key_of(case): case for case in experiment.plan(results) if case not in results}
    return list(cases.values())


def run(experiment, results, progress):
    """Run until the experiment needs no further run; known runs count into the time left."""
    seconds, done = 0.0, 0
    while pending := pending_cases(experiment, results):
        for number, case in enumerate(pending):
            begin = time.perf_counter()
            result = experiment.run(case)
            took = time.perf_counter() - begin
            results.append(case, result, took)
            seconds, done = seconds + took, done + 1
            ahead = len(pending) - number - 1
            progress.show(len(results), len(results) + ahead, seconds / done * ahead)
    return done
