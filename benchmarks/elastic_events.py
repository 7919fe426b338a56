"""Let random events happen to an elastic job, and check what it trained on; needs root.

    python benchmarks/elastic_events.py [--events 60] [--hosts 4] [--workers 1] [--seed 0]

The job is the job of benchmarks/elastic.py, on four hosts. At random moments, also during a
restart, a worker or a launcher is killed, a host is asked to stop, joins, is cut off or is
reachable again. Each worker records the rows of each step. At the end, the script compares the
rows of each epoch with the rows of the data set, and looks for processes, files and listening
ports that the job has left. Writes benchmarks/results/DATE-elastic_events.md.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import tempfile
import time

import elastic
import report
from elastic import network

PAUSE = 2.0, 30.0  # seconds between two events, at least and at most
SECONDS_AT_THE_END = 10.0  # in which all hosts have to train
DIGITS = 1797


class RandomEvents:
    """Lets random events happen to a job.

    Args:
        job: the `elastic.Job`; all hosts train.
        generator: `random.Random`.
    """

    def __init__(self, job, generator):
        self._job, self._random, self._cut = job, generator, set()

    def _possible(self):
        """Return dict from possible events to the hosts to which they can happen."""
        running = {n for n, own in self._job.launchers.items() if own.poll() is None}
        if 0 not in running:
            raise RuntimeError("the job has ended:\n" + (self._job.folder / "log").read_text())
        connected = running - self._cut
        can_go = sorted(connected - {0}) if len(connected) > self._job.minimum else []
        events = {
            "a worker is killed": [n for n in sorted(running) if self._job.worker_processes(n)],
            "a host's launcher is killed": can_go,
            "a host is asked to stop": can_go,
            "a host's network is cut": can_go,
            "a host joins": sorted(set(range(self._job.count)) - running - self._cut),
            "all networks are healed": sorted(self._cut)[:1],
        }
        return {event: hosts for event, hosts in events.items() if hosts}

    def happen(self):
        """Let one event happen; return its name."""
        possible = self._possible()
        event = self._random.choice(list(possible))
        host = self._random.choice(possible[event])
        self._job.act(event, host, self._random.choice)
        if event == "a host's network is cut":
            self._cut.add(host)
        elif event == "all networks are healed":
            self._cut.clear()
        return f"{event} (host {host})"

    def end(self):
        """Connect and start all hosts; return the seconds until all train, and exit statuses."""
        self._job.network.heal()
        since = time.time()
        while (seconds := self._all_train(since)) is None:
            if time.time() > since + elastic.SECONDS:
                raise TimeoutError((self._job.folder / "log").read_text()[-5000:])
            for number, launcher in self._job.launchers.items():
                if launcher.poll() is not None:
                    self._job.join(number)
            time.sleep(0.1)
        (self._job.folder / "finish").touch()
        launchers = self._job.launchers.values()
        return seconds, [launcher.wait(elastic.SECONDS) for launcher in launchers]

    def _all_train(self, since):
        """Return when all began to train, in seconds; None until they train for long enough."""
        steps = self._job.steps()
        first, replicas = steps[max(steps)]
        last = self._job.last_step_before(max(steps) + 1)
        if (
            replicas != self._job.count * self._job.workers
            or last < max(first, since) + SECONDS_AT_THE_END
        ):
            return None
        return max(0.0, first - since)


def history(folder):
    """Return what the final weights contain, from the files of rows.

    A start that resumes from a backup at step s replaces all steps after s of earlier starts.

    Returns:
        A dict from steps to their epoch and rows, the number of steps that a worker did not record,
        and the steps whose previous step is missing.
    """
    starts = collections.defaultdict(dict)
    for path in folder.iterdir():
        start, rank, replicas = map(int, path.name.split("-"))
        starts[start][rank] = replicas, path
    steps, lacking = {}, 0
    for start in sorted(starts):
        of_start = collections.defaultdict(list)
        for replicas, path in starts[start].values():
            for line in path.read_text().splitlines():
                step, epoch, rows = json.loads(line)
                of_start[step].append((epoch, rows, replicas))
        steps = {step: own for step, own in steps.items() if step < min(of_start)}
        steps |= of_start
    found = {}
    for step, own in sorted(steps.items()):
        lacking += len(own) < own[0][2]
        found[step] = own[0][0], [row for _, rows, _ in own for row in rows if row > 0]
    gaps = [step for step in found if step > min(found) and step - 1 not in found]
    return found, lacking, gaps


def rows_of_epochs(steps):
    """Return in how many epochs each row is used once, and texts about the other epochs."""
    expected = set(range(1, DIGITS - elastic.VALIDATION + 1))
    of_epoch = collections.defaultdict(collections.Counter)
    for epoch, rows in steps.values():
        of_epoch[epoch].update(rows)
    once, others = 0, []
    for epoch, counts in sorted(of_epoch.items()):
        missing, twice = len(expected - set(counts)), sum(n > 1 for n in counts.values())
        once += not (missing or twice)
        if missing or twice:
            others.append(f"epoch {epoch}: {missing} rows not used, {twice} used again")
    return once, others


def left_over(job, before):
    """Return texts about processes, files and listening ports that the job has left."""
    found = []
    for host in job.network.hosts:
        namespace = os.readlink(f"/proc/{host.holder}/ns/net")
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                own = os.readlink(process / "ns/net") == namespace
                command = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if own and int(process.name) != host.holder:
                found.append(f"process {process.name} of host {host.number}: {command}")
        listening = subprocess.run(
            ["nsenter", f"--net=/proc/{host.holder}/ns/net", "ss", "-Htln"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found += [f"port of host {host.number}: {line}" for line in listening.splitlines()]
    found += [f"file {path}" for path in (job.folder / "tmp").rglob("*")]
    found += [f"file {path}" for path in sorted(shared_memory() - before)]
    return found


def shared_memory():
    return set(pathlib.Path("/dev/shm").iterdir())


def main():
    """Run the job, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=60)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1, help="of each host")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator, happened, before = random.Random(arguments.seed), [], shared_memory()
    with tempfile.TemporaryDirectory() as folder, network.Network(arguments.hosts) as hosts:
        job = elastic.Job(pathlib.Path(folder), hosts, arguments.workers)
        (job.folder / "rows").mkdir()
        for number in range(arguments.hosts):
            job.join(number)
        job.seconds_until(arguments.hosts, 0)
        events, begin = RandomEvents(job, generator), time.time()
        for _ in range(arguments.events):
            happened.append(events.happen())
            print(round(time.time() - begin), happened[-1], flush=True)
            time.sleep(generator.uniform(*PAUSE))
        minutes = (time.time() - begin) / 60
        seconds, statuses = events.end()
        starts = len(job.steps())
        steps, lacking, gaps = history(job.folder / "rows")
        once, others = rows_of_epochs(steps)
        left = left_over(job, before)
        accuracy = float((job.folder / "accuracy").read_text())
    plural = "s" * (arguments.workers > 1)
    kinds = collections.Counter(event.partition(" (")[0] for event in happened)
    report.write(
        "elastic_events",
        "Random events in an elastic job",
        f"{arguments.hosts} hosts, network namespaces of this machine, with {arguments.workers} "
        f"worker{plural} each, and `tf-adasum-launch --nnodes {job.minimum}:{job.count}`, as in "
        "benchmarks/elastic.py. "
        f"{len(happened)} random events in {minutes:.0f} minutes; the pause after an event is "
        f"{PAUSE[0]:.0f} to {PAUSE[1]:.0f} s, so some events happen during a restart. Seed "
        f"{arguments.seed}.\n\n"
        + report.table(["event", "times"], sorted(kinds.items()))
        + f"\n\n- Training started {starts} times. {seconds:.0f} s after the last event, all hosts "
        f"trained again. Exit statuses of the launchers: {', '.join(map(str, statuses))}.\n"
        f"- The final weights come from {len(steps):,} steps of {once + len(others)} epochs. "
        f"Missing steps: {len(gaps)}. Steps that a killed worker did not record: {lacking}.\n"
        f"- In {once} epochs, every row was used exactly once. In the other {len(others)} epochs, "
        "training resumed with another batch size, and the position was rounded down to a whole "
        f"batch: {'; '.join(others) or 'none'}.\n"
        f"- Processes, files and ports that are left: {'; '.join(left) or 'none'}.\n"
        f"- Accuracy at the end: {accuracy:.3f}.",
    )


if __name__ == "__main__":
    main()
