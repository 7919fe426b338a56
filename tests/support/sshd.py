"""ssh servers of this machine, with keys of their own."""

import os
import shutil
import subprocess

from support.launching import eventually
from support.network import missing
from support.worker_group import free_ports

SECONDS = 20
LOCAL = ("127.0.0.1", "127.0.0.2")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def reason_to_skip():
    """Return why no server can be started here; None if it can."""
    return missing("ssh", "ssh-keygen", "sshd", path=PATH)


class Servers:
    """The servers of some hosts.

    Args:
        folder: for their files.
        hosts: hosts of a `network.Network`. Defaults to None: 127.0.0.1 and 127.0.0.2 are two.

    Attributes:
        command: the ssh command that uses them, for TF_ADASUM_SSH.
    """

    def __init__(self, folder, hosts=None):
        (port,) = free_ports(1)
        for name in ("server", "user"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
            subprocess.run(key, check=True, timeout=SECONDS)
        starts = [host.popen for host in hosts or ()] or [subprocess.Popen]
        of_each = [[host.address] for host in hosts or ()] or [LOCAL]
        kind, key, *_ = (folder / "server.pub").read_text().split()
        names = [name for addresses in of_each for name in addresses]
        _write(folder / "known", [f"[{name}]:{port} {kind} {key}" for name in names])
        client = {
            "Port": port,
            "IdentityFile": folder / "user",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": folder / "known",
            "StrictHostKeyChecking": "yes",
        }
        _write(folder / "client", [f"{name} {value}" for name, value in client.items()])
        self.command = f"ssh -F {folder}/client"
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where root's server needs it
        self._processes = []
        for number, (start, addresses) in enumerate(zip(starts, of_each, strict=True)):
            log, settings = folder / f"log{number}", folder / f"settings{number}"
            lines = [
                *(f"ListenAddress {address}:{port}" for address in addresses),
                f"HostKey {folder}/server",
                f"AuthorizedKeysFile {folder}/user.pub",
                # A session whose link is cut ends after a minute, later than the workers have to.
                *("ClientAliveInterval 20", "ClientAliveCountMax 3"),
                *("PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no"),
            ]
            _write(settings, lines)
            program = [shutil.which("sshd", path=PATH), "-D", "-E", log, "-f", settings]
            self._processes.append(start(program))
            _wait_for(log, len(addresses))

    def close(self):
        """Stop the servers; open connections stay."""
        for process in self._processes:
            process.terminate()
            process.wait(SECONDS)


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))


def _wait_for(log, count):
    """Wait until a server listens at so many addresses."""
    eventually(lambda: log.exists() and log.read_text().count("listening") >= count, SECONDS)
