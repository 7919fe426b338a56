"""Run the missing cases, with a progress bar and the remaining time."""

import sys
import time

from experiments.results import key_of

BAR = 24


class Progress:
    """A progress bar on a terminal; a line every minute if the output is no terminal."""

    def __init__(self, name, stream=None):
        self.name = name
        self.stream = stream or sys.stderr
        self.last = 0.0

    def show(self, done, total, seconds_left):
        """Draw it."""
        if self.stream.isatty():
            filled = BAR * done // max(total, 1)
            begin, bar, end = "\r", f"[{'█' * filled}{' ' * (BAR - filled)}] ", ""
        elif time.monotonic() - self.last < 60 and done < total:
            return
        else:
            begin, bar, end = "", "", "\n"
        self.last = time.monotonic()
        text = f"{begin}{self.name} {bar}{done}/{total} runs, {duration(seconds_left)} left   {end}"
        self.stream.write(text)
        self.stream.flush()


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
