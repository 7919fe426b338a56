"""Exchange gradients in a separate process, which can be ended even if TensorFlow hangs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

SECONDS_FOR_THE_EXCHANGE = 150.0

_SECONDS_TO_END = 5.0


class ExchangeProcess:
    """Runs the module `exchange` in a process, and ends the process at the end of the context."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="tf_adasum_doctor_")
        self._result = pathlib.Path(self._folder.name, "result.json")
        self._log = pathlib.Path(self._folder.name, "log")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.exchange", str(self._result)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> ExchangeProcess:
        """Return the process."""
        return self

    def __exit__(self, *exception) -> None:
        """End the process, and remove its files."""
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def poll(self) -> dict[str, Any] | None:
        """Return the results, with an "error" if the process failed; None while it runs."""
        if self._process.poll() is None:
            return None
        try:
            return json.loads(self._result.read_text())
        except (OSError, ValueError):
            lines = self._log.read_text(errors="replace").strip().splitlines()
            code = self._process.returncode
            last = lines[-1] if lines else ""
            return {"error": f"the process ended with exit status {code}: {last}"}
