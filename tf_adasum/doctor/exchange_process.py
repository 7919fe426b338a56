"""Exchange gradients in a separate process, which can be ended even if TensorFlow hangs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tf_adasum.cluster.timeouts import LEASE_SECONDS, POLL_SECONDS

SECONDS = 150.0
LATE = f"not finished in {SECONDS:.0f} s"


def run(is_stopped: Callable[[], bool]) -> dict[str, Any]:
    """Run the module `exchange` in a process, and end the process if it takes too long.

    Args:
        is_stopped: function that returns whether to end the process early.

    Returns:
        The results of `exchange`; only an "error" if the process has failed; an empty dict if
        it was ended early.
    """
    until = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory(prefix="tf_adasum_doctor_") as folder:
        result, log = pathlib.Path(folder, "result.json"), pathlib.Path(folder, "log")
        command = [sys.executable, "-m", f"{__package__}.exchange", str(result)]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            while process.poll() is None:
                if is_stopped():
                    return {}
                if time.monotonic() > until:
                    return {"error": LATE}
                time.sleep(POLL_SECONDS)
            try:
                return json.loads(result.read_text())
            except (OSError, ValueError):
                lines = log.read_text(errors="replace").strip().splitlines() or [""]
                status = f"exit status {process.returncode}"
                return {"error": f"the process ended with {status}: {lines[-1]}"}
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(LEASE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
