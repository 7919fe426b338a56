"""Groups of real worker processes that run scenarios for the tests.

Workers are forks of one process that has imported TensorFlow, which takes seconds; those of a fresh
group start as programs. A group runs the scenarios of all test modules with its topology, one after
the other; each scenario gets a strategy in its initial state.
"""

import collections
import contextlib
import json
import multiprocessing.connection
import os
import pathlib
import time
from unittest import mock

from support import worker_process
from support.pace import PACE
from tf_adasum.cluster import ports as cluster_ports

HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parents[1]
SECONDS_TO_START = 120
SECONDS_TO_STOP = 10
SECONDS_AFTER_AN_ERROR = 10

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tensorflow", "keras", "tf_adasum"])
PROGRAMS = multiprocessing.get_context("spawn")


class WorkerFailed(Exception):
    """A worker raised an exception; the message has its traceback."""


class WorkerGroup(contextlib.AbstractContextManager):
    """`workers` processes with `devices` logical CPUs each, and a strategy in each of them.

    Args:
        workers: number of processes; one trains without a cluster.
        devices: logical CPU devices of each.
        folder: where logs go; it is made if it does not exist.
        hosts: the address of each worker; by default one host for all.
        options: further arguments of AdasumMirroredStrategy.
        environments: for each worker what its environment has besides; by default nothing.
        fresh: whether each worker starts as a program. Only then does its environment affect what
            it imports, and its hashes, so the order of its sets, differ from the other workers'.

    Attributes:
        has_ended: whether a worker has ended or hung, and with it the group.
    """

    def __init__(
        self,
        workers,
        devices,
        folder,
        hosts=None,
        options=None,
        environments=None,
        fresh=False,
    ):
        self.workers, self.devices, self.folder = workers, devices, pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.replicas = workers * devices
        self.has_ended = False
        self._processes, self._pipes = [], []
        ports, context = free_ports(workers), PROGRAMS if fresh else FORKS
        for index in range(workers):
            environment = worker_environment(ports, index, devices, hosts)
            environment.update(environments[index] if environments else {})
            own, other = context.Pipe()
            log = str(self.folder / f"worker{index}.log")
            arguments = (other, log, environment, options or {})
            process = context.Process(target=worker_process.main, args=arguments)
            with mock.patch.dict(os.environ, environment if fresh else {}):
                process.start()
            other.close()
            self._processes.append(process)
            self._pipes.append(own)
        try:
            self._collect(SECONDS_TO_START)
        except WorkerFailed:
            self.close()
            raise

    def __exit__(self, *exception):
        self.close()

    def run(self, scenario, timeout=120, **arguments):
        """Run a function on all workers at once.

        Args:
            scenario: a function at the top of a module that workers can import, as those of
                `scenarios` are. It takes the strategy first, and returns a dict of arrays.
            timeout: seconds until the group is ended, on a quiet machine.
            arguments: further ones of the function.

        Returns:
            For each worker the dict of arrays that the function returned.

        Raises:
            WorkerFailed: if it raised an exception on any worker, or did not end in time.
        """
        for index, pipe in enumerate(self._pipes):
            try:
                pipe.send((scenario.__module__, scenario.__qualname__, arguments))
            except OSError:
                self._end_with(f"worker {index} ended")
        return self._collect(timeout)

    def close(self):
        """End all processes."""
        self.has_ended = True
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + SECONDS_TO_STOP * PACE
        for process in self._processes:
            process.join(max(0.1, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def _collect(self, timeout):
        """Return the answer of each worker."""
        deadline = time.monotonic() + timeout * PACE
        failures, answers = [], {}
        while len(answers) < self.workers:
            missing = {
                pipe: index for index, pipe in enumerate(self._pipes) if index not in answers
            }
            ready = multiprocessing.connection.wait(missing, max(0, deadline - time.monotonic()))
            if not ready:
                silent = f"workers {[*missing.values()]} did not answer in time"
                self._end_with("\n".join([*failures, silent]))
            for index, pipe in ((missing[pipe], pipe) for pipe in ready):
                try:
                    error, answers[index] = pipe.recv()
                except (EOFError, ConnectionResetError):
                    self._end_with("\n".join([*failures, f"worker {index} ended"]))
                if error:
                    failures.append(f"worker {index}:\n{error}")
                    # The others may wait for it.
                    deadline = min(deadline, time.monotonic() + SECONDS_AFTER_AN_ERROR * PACE)
        if any("Collective ops is aborted" in each or "WorkerLost" in each for each in failures):
            self._end_with("\n".join(failures))  # no collective works any more
        if failures:
            raise WorkerFailed("\n".join(failures))
        return [answers[index] for index in range(self.workers)]

    def _end_with(self, reason):
        self.has_ended = True
        for process in self._processes:
            process.kill()
        logs = [
            f"--- log of worker {index}\n" + path.read_text(errors="replace")[-3000:]
            for index, path in enumerate(sorted(self.folder.glob("worker*.log")))
        ]
        raise WorkerFailed("\n".join([reason, *logs]))


def worker_environment(ports, index, devices, hosts=None):
    """Return the environment of worker `index` of the cluster on these ports.

    A process that starts in it finds neither scikit-learn nor Matplotlib.
    """
    hosts = hosts or ["127.0.0.1"] * len(ports)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [HERE / "hidden", REPOSITORY])),
        "TF_ADASUM_DEVICES_PER_WORKER": str(devices),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    environment.pop("TF_CONFIG", None)
    if len(ports) > 1:
        addresses = [f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
        task = {"type": "worker", "index": index}
        environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    return environment


# Ports of the last tests, held: another test process would be given one before its server has it.
_held_ports = collections.deque()
MOST_HELD = 50


def free_ports(count):
    """Return distinct ports that nobody uses, for servers that set SO_REUSEADDR."""
    if len(_held_ports) >= MOST_HELD:
        _held_ports.popleft().close()
    _held_ports.append(contextlib.ExitStack())
    return _held_ports[-1].enter_context(cluster_ports.free_ports(count))
