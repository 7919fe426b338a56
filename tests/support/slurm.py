"""A Slurm of two nodes, n2 and n10, on this machine: processes, not system services.

Slurm sorts these names in another order than text. Only the nodes know the names, from their own
file of hosts. Needs root, and Debian's slurmctld, slurmd, slurm-client and munge.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess

from support.launching import eventually
from support.network import missing
from support.pace import PACE
from tf_adasum.cluster.ports import free_ports

NODES = {"n2": "127.0.0.2", "n10": "127.0.0.3"}
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "unshare")
SECONDS_TO_START = 60 * PACE

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SlurmdParameters=config_overrides
KillWait=30
MinJobAge=2
{nodes}
PartitionName=all Nodes=n2,n10 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def reason_to_skip():
    """Why there can be no Slurm here; "" if there can."""
    if reason := missing(*PROGRAMS):
        return reason
    if os.geteuid():
        return "it needs root"
    ended = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return ended.stderr.strip()


class Slurm:
    """Runs until `close`.

    Args:
        folder: where its files are.

    Attributes:
        environment: in which its commands find it.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder, self._processes, self._nodes = folder, [], {}
        folder.chmod(0o755)
        for name in ("state", "spool-n2", "spool-n10"):
            (folder / name).mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        try:
            with free_ports(1 + len(NODES)) as ports:
                self._configure(ports)
            self._start()
        except BaseException:
            self.close()
            raise

    def _configure(self, ports):
        folder, host = self._folder, socket.gethostname()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 "
            "RealMemory=9000"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        text = CONFIGURATION.format(host=host, folder=folder, ports=ports, nodes=nodes)
        (folder / "slurm.conf").write_text(text)
        own = "".join(f"{address} {name}\n" for name, address in NODES.items())
        (folder / "hosts").write_text(own + pathlib.Path("/etc/hosts").read_text())
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)

    def _start(self):
        folder = self._folder
        files = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "seed-file")]
        self._process("munged", "--foreground", "--force", f"--key-file={folder}/key", *files)
        eventually((folder / "munge.socket").exists, SECONDS_TO_START)
        self._process("slurmctld", "-D", "-f", f"{folder}/slurm.conf")
        for name in NODES:
            self._start_node(name)
        eventually(lambda: self._has_idle_nodes(*NODES), SECONDS_TO_START)

    def _start_node(self, name):
        with_hosts = f'mount --bind {self._folder}/hosts /etc/hosts && exec "$@"'
        slurmd = ["slurmd", "-D", "-N", name, "-f", f"{self._folder}/slurm.conf"]
        self._nodes[name] = self._process(
            "unshare", "--mount", "sh", "-c", with_hosts, "sh", *slurmd
        )

    def _process(self, *command):
        with open(self._folder / f"{len(self._processes)}.log", "w") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def _has_idle_nodes(self, *names):
        ended = self.run("sinfo", "-h", "-N", "-n", ",".join(names), "-o", "%t", check=False)
        return ended.stdout.split().count("idle") == len(names)

    @contextlib.contextmanager
    def failed(self, name):
        """Let a node fail: all its processes are killed. Afterwards, start it again."""
        own = self._nodes[name].pid  # a node's processes share its mount namespace
        namespace = os.readlink(f"/proc/{own}/ns/mnt")
        assert namespace != os.readlink("/proc/self/ns/mnt"), "the node has not started"
        for pid in [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")]:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/mnt") == namespace:
                    os.kill(pid, signal.SIGKILL)
        self._nodes[name].wait()
        self.run("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=failed")
        try:
            yield
        finally:
            self._start_node(name)
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
            eventually(lambda: self._has_idle_nodes(name), SECONDS_TO_START)

    def logs(self):
        """What the processes have said."""
        logs = sorted(self._folder.glob("[0-9].log"))
        return "\n".join(path.read_text()[-3000:] for path in logs)

    def run(self, *command, timeout=30 * PACE, check=True, **options):
        """Run a command of Slurm's; return it when it has ended."""
        ended = subprocess.run(
            command,
            env={**self.environment, **options.pop("environment", {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )
        assert not check or ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{self.logs()}"
        return ended

    def close(self):
        """End all jobs, then Slurm, by the ids of its processes."""
        if len(self._processes) > 1:
            for state in ("PENDING", "RUNNING", "COMPLETING"):
                self.run("scancel", "--signal=KILL", f"--state={state}", "--full", check=False)
            with contextlib.suppress(AssertionError):
                eventually(lambda: not self.run("squeue", "-h", check=False).stdout, 15)
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(15 * PACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
