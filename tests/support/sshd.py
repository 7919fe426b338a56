"""An ssh server on this machine, with keys of its own: 127.0.0.1 and 127.0.0.2 are two hosts."""

import os
import shutil
import subprocess
import time

from support.worker_group import free_ports

SECONDS = 20


def why_not():
    """Return why no server can be started here; None if it can."""
    missing = [name for name in ("ssh", "ssh-keygen") if not shutil.which(name)]
    if not shutil.which("sshd", path=_path()):
        missing.append("sshd")
    return f"{', '.join(missing)}: not installed (openssh-server)" if missing else None


class Server:
    """The server.

    Args:
        folder: for its files.

    Attributes:
        command: the ssh command that uses it, for TF_ADASUM_SSH.
    """

    def __init__(self, folder):
        (port,) = free_ports(1)
        for name in ("host", "user"):
            key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
            subprocess.run(key, check=True, timeout=SECONDS)
        shutil.copy(folder / "user.pub", folder / "authorized")
        addresses = ("127.0.0.1", "127.0.0.2")
        server = [
            f"Port {port}",
            *(f"ListenAddress {address}" for address in addresses),
            f"HostKey {folder}/host",
            f"AuthorizedKeysFile {folder}/authorized",
            *("PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no"),
        ]
        (folder / "server").write_text("\n".join(server) + "\n")
        kind, key, *_ = (folder / "host.pub").read_text().split()
        names = (*addresses, "localhost")
        (folder / "known").write_text("".join(f"[{n}]:{port} {kind} {key}\n" for n in names))
        client = [
            f"Port {port}",
            f"IdentityFile {folder}/user",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {folder}/known",
            "StrictHostKeyChecking yes",
            "AddressFamily inet",
        ]
        (folder / "client").write_text("\n".join(client) + "\n")
        self.command = f"ssh -F {folder}/client"
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where root's server needs it
        program = shutil.which("sshd", path=_path())
        self._process = subprocess.Popen(
            [program, "-D", "-f", folder / "server", "-E", folder / "log"], env=dict(os.environ)
        )
        deadline = time.monotonic() + SECONDS
        while self._ssh("127.0.0.2", "true").returncode:
            assert self._process.poll() is None and time.monotonic() < deadline, (
                folder / "log"
            ).read_text() + self._ssh("127.0.0.2", "true").stderr
            time.sleep(0.1)

    def _ssh(self, host, command):
        return subprocess.run(
            [*self.command.split(), "-oBatchMode=yes", host, command],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def close(self):
        """Stop the server; open connections stay."""
        self._process.terminate()
        self._process.wait(SECONDS)


def _path():
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
