"""A network of several hosts on this machine, whose links can be slow, lossy or cut.

    with Network(2) as network:
        process = network.hosts[1].popen(["ping", "-c1", network.hosts[0].address])
        network.set(0, 1, delay=0.02, loss=0.01)  # from host 0 to host 1
        network.cut(1)
        network.heal()

Each host is a network namespace with its own addresses, and a program forwards the packets between
hosts (`packet_forwarder`). Nothing has to be removed in the end: a namespace is removed with the
process that holds it, which ends together with this one. Several networks are separate, although
their hosts have the same addresses.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

from support.pace import PACE
from support.packet_forwarder import Conditions

HERE = pathlib.Path(__file__).parent
SECONDS_FOR_A_COMMAND = 20 * PACE
SECONDS_TO_STOP = 5 * PACE
_numbers = itertools.count()  # of the networks of this process


def missing(*programs, path=None):
    """Return which of some programs are not installed; None if all are."""
    names = [name for name in programs if not shutil.which(name, path=path)]
    return f"{', '.join(names)}: not installed" if names else None


def reason_to_skip():
    """Return why no network can be made here; None if it can."""
    if reason := missing("ip", "nsenter", "unshare"):
        return reason
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "no /dev/net/tun that this user may open"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "tuntap", "add", "try0", "mode", "tun"],
        capture_output=True,
        text=True,
        timeout=SECONDS_FOR_A_COMMAND,
    )
    return f"no network namespaces: {tried.stderr.strip()}" if tried.returncode else None


def start(command, ready="\n", **options):
    """Start a process that ends with its standard input; return it when it has printed a line.

    Raises:
        OSError: if its first line is another one, or there is none.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, **options)
    if (line := process.stdout.readline()) != ready:
        end(process)
        raise OSError(f"it has printed {line!r}, and ended with {process.returncode}: {command}")
    return process


def end(process):
    """End a process of `start`."""
    process.stdin.close()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


class Host:
    """One host.

    Attributes:
        number: from 0 on.
        address: of IPv4.
        address6: of IPv6; None where this machine has none.
    """

    def __init__(self, number):
        self.number = number
        self.address = f"10.77.0.{number + 1}"
        self.address6 = None
        self._processes = []
        # Holds the namespace until the other end of the pipe is closed.
        holding = "ip link set lo up && echo && exec cat"
        self._holder = start(["unshare", "--net", "sh", "-c", holding])

    @property
    def holder(self):
        """The pid of the process that holds the namespace."""
        return self._holder.pid

    def popen(self, command, **options):
        """Start a process there; its pid is that of the command itself. `close` kills it."""
        process = subprocess.Popen([*self._enter(), *map(str, command)], **options)
        self._processes.append(process)
        return process

    def run(self, *command):
        """Run a command there, and wait until it has succeeded."""
        command = [*self._enter(), *map(str, command)]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_FOR_A_COMMAND)

    def connect(self, device):
        """Take a device of this machine over as the host's only one, and give it the addresses."""
        subprocess.run(
            ["ip", "link", "set", device, "netns", str(self.holder)],
            check=True,
            timeout=SECONDS_FOR_A_COMMAND,
        )
        self.run("ip", "link", "set", device, "name", "net0", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "net0")
        address6 = f"fd77::{self.number + 1}"
        with contextlib.suppress(subprocess.CalledProcessError):
            self.run("ip", "-6", "address", "add", f"{address6}/64", "dev", "net0", "nodad")
            self.address6 = address6

    def close(self):
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        end(self._holder)

    def _enter(self):
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]


class Network(contextlib.AbstractContextManager):
    """Hosts, each linked to every other one.

    Args:
        size: the number of hosts.

    Attributes:
        hosts: list of `Host`.
    """

    def __init__(self, size):
        self.hosts, self._forwarder = [], None
        number = next(_numbers)
        devices = [f"n{os.getpid()}.{number}.{host}" for host in range(size)]
        told = [(d, f"10.77.0.{n}", f"fd77::{n}") for n, d in enumerate(devices, 1)]
        try:
            forwarder = [sys.executable, str(HERE / "packet_forwarder.py"), json.dumps(told)]
            self._forwarder = start(forwarder)
            for host, device in enumerate(devices):
                self.hosts.append(Host(host))
                self.hosts[-1].connect(device)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception):
        self.close()

    def set(self, source=None, target=None, **conditions):
        """Change how packets travel from one host to another, from now on.

        Args:
            source: number of a host. Defaults to None: every one.
            target: the same.
            conditions: `Conditions`; what is left out is as on a perfect network.
        """
        everyone = range(len(self.hosts))
        sources = everyone if source is None else [source]
        pairs = itertools.product(sources, everyone if target is None else [target])
        own = dataclasses.asdict(Conditions(**conditions))
        lines = [json.dumps([*pair, own]) for pair in pairs]
        self._forwarder.stdin.write("\n".join(lines) + "\n")
        self._forwarder.stdin.flush()
        for _ in lines:
            if not self._forwarder.stdout.readline():
                raise OSError("the program that forwards packets has ended; it has said why")

    def cut(self, host):
        """Cut a host off from all others."""
        self.set(source=host, cut=True)
        self.set(target=host, cut=True)

    def heal(self):
        """Make all links perfect."""
        self.set()

    def close(self):
        """End all processes of the hosts, and the network."""
        if self._forwarder is not None:
            end(self._forwarder)
        self._forwarder = None
        for host in self.hosts:
            host.close()
