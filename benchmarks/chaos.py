"""Break the network and the workers at random, and check that training ends with the same result.

    python benchmarks/chaos.py [--minutes 5] [--seed 0]

Two and three workers train on separate hosts (network namespaces of this machine: needs root) and
make backups. At random moments a host or one direction of a link is cut off, links become slow and
lossy, or a worker is paused or killed; a cut link recovers after a random time. If a worker fails,
the others must exit within a time limit, and all workers start again, until one start reaches the
end. Then, on each worker, the weights, slots and last values of the logs must equal the values of
an undisturbed run, bit for bit. The training is the same as in benchmarks/restarts.py. Writes
benchmarks/results/DATE-chaos.md.
"""

import argparse
import contextlib
import dataclasses
import itertools
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

import numpy as np
import report
import restarts

sys.path[:0] = [str(report.ROOT / "tests" / "multi_worker"), str(report.ROOT / "tests")]

from support.faults import PORT  # noqa: E402 - found on the path above
from support.network import Network, reason_to_skip  # noqa: E402
from support.worker_group import worker_environment  # noqa: E402

WORKERS, FREQUENCIES = (2, 3), ("epoch", 7)
SECONDS_PER_STEP = 0.2
FAULTS_PER_RUN = 4  # at most
LONGEST_QUIET = 20.0  # maximum seconds from a start to a fault, or from one fault to the next
SECONDS_TO_END = 200.0  # limit for the others after a failure: they may import TensorFlow and start
SECONDS = 600.0  # after this time, a start counts as hanging
NAMED = re.compile(r"worker \d")
ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt): ")
GUARD = "in TensorFlow's start-up"


@dataclasses.dataclass
class RunRecord:
    """The record of a run.

    Attributes:
        happened: the faults that were injected, as texts.
        starts: the number of starts.
        hung: workers that did not exit, as texts.
        unnamed: errors that name no worker.
        end: each worker's state at the end; None if there is none.
    """

    happened: list = dataclasses.field(default_factory=list)
    starts: int = 0
    hung: list = dataclasses.field(default_factory=list)
    unnamed: list = dataclasses.field(default_factory=list)
    end: list | None = None


class Run:
    """A training run on separate hosts.

    Args:
        folder: an empty folder for backups and logs.
        workers: the number of workers.
        save_freq: `save_freq` of the backups.
        rng: `random.Random`.
        faults: the maximum number of faults.
    """

    def __init__(self, folder, workers, save_freq, rng, faults):
        self._folder, self._workers, self._save_freq = folder, workers, save_freq
        self._chance, self._faults = rng, faults
        self._network, self._processes = Network(workers), []
        self._due = []  # pairs of a time and a function that ends a fault then
        self.told = RunRecord()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._network.close()

    def run(self):
        """Start the workers until a start succeeds; return the record."""
        while not self._start():
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
            if self.told.hung:
                return self.told
        ends = [self._folder / f"end-{rank}.npz" for rank in range(self._workers)]
        self.told.end = [dict(np.load(path)) for path in ends]
        return self.told

    def _start(self):
        """Start all workers once and inject faults; return whether all workers succeed."""
        number = self.told.starts
        self.told.starts += 1
        hosts = [host.address for host in self._network.hosts]
        self._processes = []
        for rank, host in enumerate(self._network.hosts):
            environment = worker_environment([PORT] * self._workers, rank, 1, hosts)
            environment["TF_ADASUM_RESTART_COUNT"] = str(number)
            environment["PYTHONPATH"] = str(report.ROOT)
            command = [sys.executable, "-u", report.ROOT / "benchmarks" / "restarts.py"]
            command += ["--folder", self._folder, "--save-freq", self._save_freq]
            command += ["--seconds-per-step", SECONDS_PER_STEP]
            with open(self._log(number, rank), "wb") as log:
                process = host.popen(command, env=environment, stdout=log, stderr=log)
            self._processes.append(process)
        begun, failed = time.monotonic(), None
        next_fault = begun + self._chance.uniform(0, LONGEST_QUIET)
        while True:
            now = time.monotonic()
            codes = [process.poll() for process in self._processes]
            if None not in codes:
                self._heal(now, all_of_it=True)
                self._note_errors(number, codes)
                return not any(codes)
            if failed is None and any(codes):
                failed = now
            if now > begun + SECONDS or (failed and now > failed + SECONDS_TO_END):
                self._note_hanging(number, codes)
                return False
            self._heal(now)
            if failed is None and self._faults and now >= next_fault:
                self._faults -= 1
                self._break(now, number, now - begun)
                next_fault = now + self._chance.uniform(0, LONGEST_QUIET)
            time.sleep(0.05)

    def _break(self, now, number, seconds):
        """Inject a random fault, and plan when it ends."""
        rng, network = self._chance, self._network
        worker = rng.randrange(self._workers)
        other = rng.choice([rank for rank in range(self._workers) if rank != worker])
        lasts = rng.choice([1, 3, 8, 15, 25, 45])
        kind = rng.choice(["cut", "one way", "slow", "pause", "kill"])
        what = f"{kind} {worker}" if kind == "kill" else f"{kind} {worker} for {lasts} s"
        self.told.happened.append(f"{what} (start {number} + {seconds:.0f} s)")
        heal = network.heal
        if kind == "cut":
            network.cut(worker)
        elif kind == "one way":
            network.set(worker, other, cut=True)
        elif kind == "slow":
            network.set(delay=0.05, jitter=0.02, loss=0.03)
        elif kind == "pause":
            self._send(signal.SIGSTOP, worker)
            heal = lambda: self._send(signal.SIGCONT, worker)  # noqa: E731
        else:
            self._send(signal.SIGKILL, worker)
            heal = lambda: None  # noqa: E731
        self._due.append((now + lasts, heal))

    def _send(self, number, worker):
        with contextlib.suppress(ProcessLookupError):
            self._processes[worker].send_signal(number)

    def _heal(self, now, *, all_of_it=False):
        """End the faults that are due. After a start, the remaining faults end within 10 s."""
        if all_of_it:
            self._due = [(min(when, now + 10), heal) for when, heal in self._due]
        for _, heal in [pair for pair in self._due if pair[0] <= now]:
            heal()
        self._due = [pair for pair in self._due if pair[0] > now]

    def _log(self, number, rank):
        return self._folder / f"start-{number}-{rank}.log"

    def _note_errors(self, number, codes):
        for rank, code in enumerate(codes):
            text = self._log(number, rank).read_text(errors="replace")
            if code == 0 or (code == -signal.SIGKILL and GUARD not in text):
                continue
            errors = [line for line in text.splitlines() if ERROR.match(line) or GUARD in line]
            if not any(map(NAMED.search, errors)):
                said = (errors or [text[-200:]])[-1]
                self.told.unnamed.append(f"worker {rank}, start {number}: {said[:200]}")

    def _note_hanging(self, number, codes):
        for rank, code in enumerate(codes):
            if code is None:
                text = self._log(number, rank).read_text(errors="replace")
                self.told.hung.append(f"worker {rank}, start {number}: {text[-500:]}")


def run(folder, workers, save_freq, rng, faults):
    folder.mkdir(parents=True)
    with Run(folder, workers, save_freq, rng, faults) as training:
        return training.run()


def write_report(rows, seed):
    header = ["run", "workers", "save_freq", "what happened", "starts", "end", "seconds"]
    report.write(
        "chaos",
        "Networks and workers broken at random: the same end as unbroken",
        "Workers on hosts of their own, with DeltaAdasum(Adam), 3 local steps, dropout, "
        f"BatchNormalization, shuffled arrays, validation and backups; seed {seed}. Up to "
        f"{FAULTS_PER_RUN} things happen in each run: a host is cut off, one direction of a link "
        "is, all links are slow (50 ms, 3 % loss), a worker is paused, for so many seconds, or "
        "killed. Equal: weights, slots and last logs of all workers, bit for bit.\n\n"
        + report.table(header, rows),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="after which no run begins")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the logs of all runs")
    arguments = parser.parse_args()
    if reason := reason_to_skip():
        sys.exit(f"cannot create network namespaces: {reason}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    deadline, rows, unbroken = time.monotonic() + 60 * arguments.minutes, [], {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        kinds = itertools.cycle(itertools.product(WORKERS, FREQUENCIES))
        for number, (workers, freq) in enumerate(kinds):
            if time.monotonic() > deadline:
                break
            if (workers, freq) not in unbroken:
                quiet = run(folder / f"unbroken-{workers}-{freq}", workers, freq, random, 0)
                unbroken[workers, freq] = quiet.end
            rng = random.Random(arguments.seed * 1000 + number)
            begun = time.monotonic()
            told = run(folder / str(number), workers, freq, rng, FAULTS_PER_RUN)
            end = "equal"
            if told.end is None:
                end = f"**hung**: {'; '.join(told.hung)}"
            elif not restarts.same(told.end, unbroken[workers, freq]):
                end = "**NOT equal**"
            seconds = f"{time.monotonic() - begun:.0f}"
            row = [number, workers, freq, "; ".join(told.happened), told.starts, end, seconds]
            print(*row, *told.unnamed, sep="\n  ", flush=True)
            row[5] = " ".join(f"{end}; unnamed: {told.unnamed}".split()) if told.unnamed else end
            rows.append([" ".join(str(each).replace("|", "/").split()) for each in row])
            write_report(rows, arguments.seed)
    if any("**" in row[5] for row in rows):
        sys.exit("not the same")


if __name__ == "__main__":
    main()
