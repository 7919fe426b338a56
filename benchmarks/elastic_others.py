"""Measure how long torchrun and Horovod Elastic need to continue after a host is lost or joins.

    TORCH_PYTHON=/usr/bin/python3 HOROVOD_PYTHON=... python benchmarks/elastic_others.py [--times 3]

TORCH_PYTHON is the Python of an environment with PyTorch, such as Debian's `python3-torch`.
HOROVOD_PYTHON is the Python of an environment with TensorFlow 2.15 and Horovod:

    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_TENSORFLOW=1 \\
        pip install --no-build-isolation horovod==0.28.1

Horovod starts its workers through ssh, so this script starts an OpenSSH server on each host. Needs
root. Writes benchmarks/results/DATE-elastic_others.md.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import elastic
import report
from elastic import HOSTS, PORT, network

# Runs a command with its first argument as the name of the host, because PyTorch uses this name.
WITH_ITS_NAME = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
TRAIN = pathlib.Path(__file__).with_name("elastic_others_train.py")
LONGEST = 60  # seconds until training has to continue after an event
SECONDS_TO_LISTEN = 0.5  # until an OpenSSH server listens
EVENTS = (
    "a worker is killed",
    "all processes of a host are killed",
    "a host joins",
    "a host's network is cut",
    "a host's network is healed",
)


def descendants(pid):
    """Return the ids of a process's children, of their children, and so on."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    children = [int(child) for child in found.stdout.split()]
    return [each for child in children for each in (child, *descendants(child))]


class Job(elastic.Job):
    """A job of another framework; `python` is its Python."""

    def __init__(self, folder, hosts, python):
        super().__init__(folder, hosts, workers=1)
        self._python = python

    def start_on(self, number, *command):
        """Start a process on a host."""
        environment = {
            **os.environ,
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "TMPDIR": str(self.folder / "tmp"),
            "GLOO_SOCKET_IFNAME": "net0",
        }
        host = self.network.hosts[number]
        return host.popen(
            [*WITH_ITS_NAME, host.address, *elastic.WITH_ITS_INTERFACES, "sh", *command],
            env=environment,
            stdout=self.log,
            stderr=self.log,
        )

    def close(self):
        """Kill all processes of the job; all have the name of its folder in their commands."""
        found = subprocess.run(["pgrep", "-f", str(self.folder)], capture_output=True, text=True)
        for process in map(int, found.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def kill(self, processes):
        """Kill the processes with these ids."""
        for process in processes:
            os.kill(process, signal.SIGKILL)

    def happen(self, event):
        """Make host 3 fail or join; return the result of `seconds_until`."""
        since, hosts = time.time(), HOSTS - ("cut" in event or "all" in event)
        if event == "a worker is killed":
            self.kill(self.worker_processes(3))
        elif event == "all processes of a host are killed":
            launcher = self.launchers[3]
            self.kill([launcher.pid, *descendants(launcher.pid)])
            launcher.wait()
        elif event == "a host joins":
            self.join(3)
        elif event == "a host's network is cut":
            self.network.cut(3)
        else:
            self.network.heal()
        return self.seconds_until(hosts, since, LONGEST)


class TorchrunJob(Job):
    """A job of torchrun; each host runs the same command."""

    settings = ""

    def join(self, number):
        command = [self._python, "-m", "torch.distributed.run", "--nnodes", f"2:{HOSTS}"]
        command += ["--nproc_per_node", 1, "--max_restarts", 1000, "--rdzv_backend", "c10d"]
        command += ["--redirects", 1, "--tee", 1]  # Debian's version cannot start without them
        command += ["--rdzv_id", "job", "--rdzv_conf", f"is_host={int(number == 0)}{self.settings}"]
        command += ["--rdzv_endpoint", f"{self.network.hosts[0].address}:{PORT}"]
        self.launchers[number] = self.start_on(number, *command, TRAIN, "torchrun", self.folder)

    def worker_processes(self, number):
        return descendants(self.launchers[number].pid)


class TorchrunWithoutLastCallJob(TorchrunJob):
    """A job whose rendezvous waits only 1 s for more hosts, when it has the minimum."""

    settings = ",last_call_timeout=1"


class HorovodJob(Job):
    """A job of Horovod Elastic; horovodrun on host 0 starts a worker on each host through ssh."""

    def __init__(self, folder, hosts, python):
        super().__init__(folder, hosts, python)
        for name in ("key", "host_key"):
            command = ["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", folder / name]
            subprocess.run(command, check=True, timeout=network.SECONDS_FOR_A_COMMAND)
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\nStrictModes no\n"
            "PermitRootLogin yes\nPidFile none\nUsePAM no\n"
        )
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        # The hosts of an earlier job have the same addresses, but other keys.
        (folder / "ssh").write_text(
            '#!/bin/sh\nexec /usr/bin/ssh -o UserKnownHostsFile=/dev/null "$@"\n'
        )
        (folder / "ssh").chmod(0o755)
        self._run = None

    def join(self, number):
        self.launchers[number] = self.start_on(
            number, "/usr/sbin/sshd", "-D", "-e", "-f", self.folder / "sshd_config"
        )
        time.sleep(SECONDS_TO_LISTEN)
        self._write_hosts()
        if len(self.launchers) < HOSTS or self._run:
            return
        discover = self.folder / "discover"
        discover.write_text(f"#!/bin/sh\ncat {self.folder}/hosts\n")
        discover.chmod(0o755)
        command = [pathlib.Path(self._python).with_name("horovodrun"), "-np", HOSTS, "--min-np", 2]
        command += ["--max-np", HOSTS, "--host-discovery-script", discover, "--gloo"]
        command += ["--ssh-identity-file", self.folder / "key", "--network-interface", "net0"]
        command += ["--blacklist-cooldown-range", 1, 2, "--reset-limit", 1000]
        python = [self._python, TRAIN, "horovod", self.folder]
        self._run = self.start_on(0, *command, *python)

    def _write_hosts(self):
        running = [n for n, server in self.launchers.items() if server.poll() is None]
        new = self.folder / "hosts.new"
        new.write_text("".join(f"{self.network.hosts[n].address}:1\n" for n in running))
        new.rename(self.folder / "hosts")

    def kill(self, processes):
        super().kill(processes)
        self._write_hosts()

    def worker_processes(self, number):
        return [
            each
            for each in descendants(self.launchers[number].pid)
            if pathlib.Path(f"/proc/{each}/cmdline").read_bytes().startswith(self._python.encode())
        ]


def measure(kind, python, times):
    """Return dict from events to the seconds; None if training did not continue in time."""
    found = {event: [] for event in EVENTS}
    for _ in range(times):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            hosts = stack.enter_context(network.Network(HOSTS))
            job = stack.enter_context(contextlib.closing(kind(pathlib.Path(folder), hosts, python)))
            for number in range(HOSTS):
                job.join(number)
            job.seconds_until(HOSTS, 0)
            for event in EVENTS:
                try:
                    found[event].append(job.happen(event)[0])
                except TimeoutError as error:
                    print(error)
                    found[event].append(None)
                    break
                finally:
                    print(kind.__name__, event, found[event][-1:], flush=True)
    return found


def in_words(results):
    """Return the median and range of the seconds, and how often training did not continue."""
    seconds = [each for each in results if each is not None]
    failures = len(results) - len(seconds)
    texts = [elastic.median_and_range(seconds)] if seconds else []
    texts += [f"{failures} of {len(results)}: not within {LONGEST} s"] if failures else []
    return "; ".join(texts) or "not measured"


def versions(python, *modules):
    """Return the versions of modules, as a text."""
    code = "import importlib, sys; print(importlib.import_module(sys.argv[1]).__version__)"
    found = [
        subprocess.run([python, "-c", code, each], capture_output=True, text=True, timeout=60)
        for each in modules
    ]
    return ", ".join(
        f"{name} {each.stdout.strip()}" for name, each in zip(modules, found, strict=True)
    )


def main():
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", help="the name of a job's class")
    arguments = parser.parse_args()
    torch, horovod = os.environ["TORCH_PYTHON"], os.environ["HOROVOD_PYTHON"]
    frameworks = {
        "torchrun": (TorchrunJob, torch),
        "torchrun, `last_call_timeout=1`": (TorchrunWithoutLastCallJob, torch),
        "Horovod Elastic": (HorovodJob, horovod),
    }
    found = {
        name: measure(kind, python, arguments.times)
        for name, (kind, python) in frameworks.items()
        if arguments.only in (None, kind.__name__)
    }
    rows = [[event, *(in_words(results[event]) for results in found.values())] for event in EVENTS]
    report.write(
        "elastic_others",
        "Hosts that are lost and join: torchrun and Horovod Elastic",
        f"{HOSTS} hosts, network namespaces of this machine, with 1 worker each. "
        f"{versions(torch, 'torch')}; {versions(horovod, 'horovod', 'tensorflow')}. The same small "
        "network as in the report of tf_adasum, with generated inputs. A backup after every 10 "
        "steps: with torchrun a file of worker 0, with Horovod `state.commit()`. Seconds: from the "
        "event until worker 0 has finished its next training step on the new hosts, median "
        f"(lowest to highest) of {arguments.times} runs, each with these events in this order. If "
        f"training does not continue within {LONGEST} s, the rest of the run is left out. torchrun "
        "waits `last_call_timeout`, 30 s by default, for more hosts when it has at least 2 of 4. "
        "Horovod Elastic starts no worker on a host where one has failed; here, "
        "`--blacklist-cooldown-range 1 2` allows it after 1 to 2 s. When a host joins Horovod's "
        f"job, its OpenSSH server has {SECONDS_TO_LISTEN} s to start, which are counted.\n\n"
        + report.table(["event", *found], rows),
    )


if __name__ == "__main__":
    main()
