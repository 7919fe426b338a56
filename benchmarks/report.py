"""Start workers for the benchmarks, time steps, compute medians, and write the reports."""

import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Scripts import from these what they need.
sys.path += [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "multi_worker")]
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 600
WARM_UP = 3  # steps of each `fit` that `time_in_turn` does not count; they include tracing


def on_workers(workers, script, *arguments, devices=1, seconds=SECONDS):
    """Run a script on several local workers, with ``--out FILE``; return worker 0's JSON.

    The workers are stopped after `seconds`.
    """
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = ["-m", "tf_adasum.launch", "-n", str(workers), "--timeout", str(seconds)]
        command += ["--devices-per-worker", str(devices)] if devices > 1 else []
        command += [script, *arguments, "--out", file.name]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, timeout=seconds + 60)
        return json.load(file)


def save(strategy, measured, out):
    """Write what `on_workers` returns, on worker 0 only."""
    if strategy.cluster_resolver.task_id in (None, 0):
        pathlib.Path(out).write_text(json.dumps(measured))


def time_in_turn(models, x, y, *, batch_size, rounds):
    """Return for each model a list of rounds, each a list of the seconds of its steps.

    Args:
        models: dict from names to compiled Keras models.
        x, y: the data of one `fit`. Its first WARM_UP steps are not counted.
        batch_size: the global batch size.
        rounds: the number of rounds; in each round, every model is trained once.
    """
    import keras

    class Stopwatch(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds.append(time.perf_counter() - self.start)

    seconds = {name: [] for name in models}
    for number in range(rounds):
        for name in sorted(models, reverse=number % 2):  # no model is always first
            model = models[name]
            stopwatch = Stopwatch()
            model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0, callbacks=[stopwatch])
            seconds[name].append(stopwatch.seconds[WARM_UP:])
    return seconds


def quartiles(values, scale=1.0, digits=2):
    """Return "median (lower quartile..upper quartile)" of ``scale * values``."""
    low, median, high = (f"{v * scale:.{digits}f}" for v in np.percentile(values, [25, 50, 75]))
    return f"{median} ({low}..{high})"


def table(header, rows):
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def tables(text):
    """Return the rows of all tables in Markdown, each as a dict from the header's cells."""
    rows, header = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|- "):
            header = header if line.startswith("|") else []
        elif not header:
            header = cells
        else:
            rows.append(dict(zip(header, cells, strict=True)))
    return rows


def this_machine():
    """Describe the machine and the versions of TensorFlow and Keras, for benchmarks on CPUs."""
    return (
        f"{os.cpu_count()} CPU cores, {platform.machine()}, no GPU; all workers share them. "
        f"{versions()}"
    )


def versions():
    """Return the versions of Python, Keras, and TensorFlow's package for GPUs or for CPUs."""
    try:
        tensorflow = version("tensorflow")
    except PackageNotFoundError:
        tensorflow = version("tensorflow-cpu")
    return f"Python {platform.python_version()}, TensorFlow {tensorflow}, Keras {version('keras')}"


def commit():
    """Return the commit that is measured, or "unknown" outside a git repository."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return "unknown"
    return described.stdout.strip() or "unknown"


def write(name, title, body, *, machine=None, folder=RESULTS):
    """Write benchmarks/results/DATE-name.md, with the commit, the command and the machine.

    `machine` replaces `this_machine()`, which needs TensorFlow. `folder` is the report's folder.
    """
    date = datetime.date.today().isoformat()
    script = pathlib.Path(sys.argv[0]).name
    command = " ".join(["python", f"benchmarks/{script}", *sys.argv[1:]])
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date}-{name}.md"
    path.write_text(
        f"# {title}\n\n"
        f"{date}, commit {commit()}. Command: `{command}`.\n\n"
        f"Machine: {machine or this_machine()}.\n\n{body}\n"
    )
    print(path.read_text())
