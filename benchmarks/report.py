"""What the benchmarks share: starting workers, medians with their spread, and the report."""

import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 600


def on_workers(workers, script, *arguments):
    """Runs a script on several local workers, with ``--out FILE``; returns worker 0's JSON."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = ["-m", "tf_adasum.launch", "-n", str(workers), "--timeout", str(SECONDS)]
        command += [script, *arguments, "--out", file.name]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, timeout=SECONDS + 60)
        return json.load(file)


def save(strategy, measured, out):
    """Writes what `on_workers` returns; only worker 0 does."""
    if strategy.cluster_resolver.task_id in (None, 0):
        pathlib.Path(out).write_text(json.dumps(measured))


def quartiles(values, scale=1.0, digits=2):
    """Returns "median (lower quartile..upper quartile)" of ``scale * values``."""
    low, median, high = (f"{v * scale:.{digits}f}" for v in np.percentile(values, [25, 50, 75]))
    return f"{median} ({low}..{high})"


def table(header, rows):
    """Returns a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def write(name, title, body):
    """Writes benchmarks/results/DATE-name.md, which says on what and how it was measured."""
    date = datetime.date.today().isoformat()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    command = " ".join(["python", f"benchmarks/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]])
    path = RESULTS / f"{date}-{name}.md"
    path.write_text(
        f"# {title}\n\n"
        f"{date}, commit {commit}. Command: `{command}`.\n\n"
        f"Machine: {os.cpu_count()} CPU cores, {platform.machine()}, no GPU; all workers share "
        f"them. Python {platform.python_version()}, TensorFlow {version('tensorflow-cpu')}, Keras "
        f"{version('keras')}.\n\n{body}\n"
    )
    print(path.read_text())
