"""What unauthenticated clients may do to workers: the rows of a table, and tests.

Such a client is a process without the workers' secret, or without the token of their failure
detector, that connects to every port on which worker 0 listens. Every case has to end in one of two
ways, on every worker: it trains to the weights of an undisturbed run, or raises an error that names
another worker within a bound. The timeouts are the defaults.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import subprocess
import sys

from support import faults, network_cases
from support.network import start
from support.network_cases import LATE, WHOLE_START

HERE = pathlib.Path(__file__).parent
SECONDS_PER_STEP = 0.3  # at least: clients have 7 s of training
SECONDS_ALONE = 6.0  # of worker 0 at the rendezvous, from the start
SOON = 60.0  # seconds within which training ends, on a busy machine


@dataclasses.dataclass(frozen=True)
class Case:
    """What unauthenticated clients do, and what workers have to.

    Attributes:
        name: a row of the table.
        kind: of the clients, see `unauthenticated_clients`; None: there are none.
        at_rendezvous: whether they come while worker 0 waits for worker 1, not in a step.
        worker_1_starts: whether worker 1 comes at all.
        files: how many files worker 0 may open. Defaults to None: as many as this process.
        secrets: of each worker. Defaults to None: without one.
        seconds_to_report: seconds within which every worker has to say something.
        must_train: whether all have to train to the end, or must not.
        error_pattern: pattern in each error. Defaults to None: the name of another worker.
    """

    name: str
    kind: str | None = None
    at_rendezvous: bool = False
    worker_1_starts: bool = True
    files: int | None = None
    secrets: tuple | None = None
    seconds_to_report: float = SOON
    must_train: bool = True
    error_pattern: str | None = None
    workers: int = 2


def rendezvous_case(name, kind=None, **options):
    return Case(f"at the rendezvous: {name}", kind, at_rendezvous=True, **options)


UNBROKEN = Case("nothing")
ONE_SECRET = ("of the cluster", "of the cluster")

CASES = [
    Case("1,000 silent connections, `ulimit -n 1024`", "silent", files=1024),
    Case("50 unfinished lines of 1 MiB", "unfinished"),
    Case("random bytes", "random"),
    Case("HTTP requests", "http"),
    Case("deeply nested JSON", "nested"),
    Case('"I am worker 1, it has failed", without the token', "without token"),
    Case("connections that are reset at once, by the hundred", "reset"),
    Case("with the token: a rank outside the cluster", "rank outside"),
    Case('with the token: "I am worker 1, it has failed"', "worker 1"),
    Case("with the token: numbers that are Infinity or NaN", "not finite"),
    Case("with the token: replayed messages of worker 1", "replay"),
    rendezvous_case("1,000 silent connections, `ulimit -n 1024`", "silent", files=1024),
    rendezvous_case("random bytes", "random"),
    rendezvous_case("unfinished lines of 1 MiB", "unfinished"),
    rendezvous_case("deeply nested JSON", "nested"),
    rendezvous_case(
        "a web server at worker 1's address, no worker 1",
        "answers http",
        worker_1_starts=False,
        must_train=False,
        seconds_to_report=WHOLE_START,
    ),
    rendezvous_case(
        "another client joins as worker 1 without the secret",
        "introduces itself",
        secrets=ONE_SECRET,
    ),
    rendezvous_case("worker 1 has another secret", secrets=("one", "another"), must_train=False),
]


def run(case, folder, *, strategy="adasum"):
    """Run a case; return a dict from ranks to `faults.Outcome`.

    Args:
        case: the `Case`.
        folder: an empty one.
        strategy: "adasum" or "stock".
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:

        def come(processes):
            if case.kind:
                stack.enter_context(_clients(case.kind, processes, folder))

        steps = [(0.0, come)]
        if case.at_rendezvous and case.kind != "answers http":
            steps = [(0.0, lambda processes: None), (0.1, come)]
        if case.at_rendezvous and case.worker_1_starts:
            steps.append((SECONDS_ALONE, lambda processes: (folder / "late").touch()))
        return faults.run(
            folder,
            limit=case.seconds_to_report + LATE,
            awaited=range(case.workers) if case.worker_1_starts else [0],
            popens=[functools.partial(_popen, case, rank, folder) for rank in range(case.workers)],
            steps=steps,
            injection_point="before" if case.at_rendezvous else "step",
            strategy=strategy,
            seconds_per_step=SECONDS_PER_STEP,
            late=1 if case.at_rendezvous else None,
            says=True,
        )


def _popen(case, rank, folder, command, env, **options):
    """Start a worker; and leave the cluster for clients who know it."""
    cluster = json.loads(env["TF_CONFIG"])["cluster"]["worker"]
    folder.joinpath("cluster").write_text(json.dumps(cluster))
    if case.secrets:
        env = {**env, "TF_ADASUM_SECRET": case.secrets[rank]}
    if case.files and rank == 0:
        command = ["sh", "-c", f'ulimit -n {case.files}; exec "$@"', "sh", *command]
    return subprocess.Popen(command, env=env, **options)


@contextlib.contextmanager
def _clients(kind, processes, folder):
    """Clients, from when all of them have called."""
    cluster = json.loads(folder.joinpath("cluster").read_text())
    port = int(cluster[1].rpartition(":")[2])
    asked = {"kind": kind, "pid": processes[0].pid, "folder": str(folder), "port": port}
    with open(folder / "clients.log", "wb") as log:
        process = start(
            [sys.executable, str(HERE / "unauthenticated_clients.py"), json.dumps(asked)],
            "all have called\n",
            stderr=log,
            env={"PYTHONPATH": str(HERE.parents[1]), "PATH": "/usr/bin:/bin"},
        )
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def violations(case, outcomes, expected):
    """Return what is not as it has to be, as texts.

    Args:
        case: the `Case`.
        outcomes: of `run`.
        expected: digest of the weights of an unbroken run.
    """
    found = network_cases.violations(case, outcomes, expected)
    if not case.must_train and any(outcome.digest for outcome in outcomes.values()):
        found.append("they train in spite of different secrets")
    return found
