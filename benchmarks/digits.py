"""Train on digits with several seeds, with Keras 3 or Keras 2, and write a report.

    python benchmarks/digits.py --seeds 0 1 2
    python benchmarks/digits.py --name digits_addons      with the Python of the Keras 2 environment

Runs examples/train_digits.py: one replica alone, then four workers with two devices each, with
"mean" and with "adasum". All other settings are the same, including the learning rate. Writes
benchmarks/results/DATE-NAME.md, every run as JSON, and DATE-NAME.png with the curves of the first
seed.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from importlib.metadata import distributions, version

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SETTINGS = ["--learning-rate", "0.05", "--batch-per-replica", "4", "--epochs", "6"]
SCRIPT = "examples/train_digits.py"
LAUNCH = ["-m", "tf_adasum.launch", "-n", "4", "--devices-per-worker", "2"]
COMMANDS = {
    "one replica": [SCRIPT, *SETTINGS],
    "mean, 8 replicas": [*LAUNCH, SCRIPT, *SETTINGS, "--rule", "mean"],
    "adasum, 8 replicas": [*LAUNCH, SCRIPT, *SETTINGS, "--rule", "adasum"],
}


def measure(name, seed, folder):
    """Run one training; return its JSON."""
    out = folder / f"{name.replace(', ', '_').replace(' ', '_')}_seed{seed}"
    command = [sys.executable, *COMMANDS[name], "--seed", str(seed), "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    out.with_suffix(".png").unlink()
    return json.loads(out.with_suffix(".json").read_text())


def tensorflow_version():
    """Return the version of the TensorFlow package that is installed."""
    names = {"tensorflow", "tensorflow-cpu"}
    found = {one.metadata["Name"]: one.version for one in distributions()}
    return next(found[name] for name in names if name in found)


def table(runs):
    """Return one Markdown row for each setting: accuracies and losses, median and range."""
    lines = [
        "| run | steps | validation accuracy, median (lowest..highest) | training loss | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, own in runs.items():
        accuracies = [run["val_accuracy"][-1] for run in own]
        losses = [run["loss"][-1] for run in own]
        seconds = statistics.median(run["seconds"] for run in own)
        steps = own[0]["steps_per_epoch"] * len(own[0]["loss"])
        lines.append(
            f"| {name} | {steps} | {statistics.median(accuracies):.3f} "
            f"({min(accuracies):.3f}..{max(accuracies):.3f}) | {statistics.median(losses):.3f} "
            f"({min(losses):.3f}..{max(losses):.3f}) | {seconds:.0f} |"
        )
    return "\n".join(lines)


def report(runs, seeds, date, name):
    """Return the report as Markdown."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    commands = "\n".join(f"    python {' '.join(command)}" for command in COMMANDS.values())
    return f"""# Digits: one replica, mean and Adasum at the same learning rate

{date}, commit {commit}. Command: `python benchmarks/digits.py --seeds
{" ".join(map(str, seeds))} --name {name}`.

Machine: {os.cpu_count()} CPU cores, {platform.machine()}, no GPU. Python
{platform.python_version()}, TensorFlow {tensorflow_version()}, Keras {version("keras")}.

Plain SGD, learning rate 0.05, 4 rows per replica, 6 epochs, after the last epoch; seeds
{", ".join(map(str, seeds))}. Validation: 300 rows, so that 0.01 is 3 rows. All workers share the
cores of one machine: the seconds do not say what adding workers gains.

{table(runs)}

For each seed:

{commands}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--name", default="digits")
    arguments = parser.parse_args()
    seeds, name = arguments.seeds, arguments.name
    date = datetime.date.today().isoformat()
    folder = RESULTS / f"{date}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    runs = {run: [measure(run, seed, folder) for seed in seeds] for run in COMMANDS}
    sys.path.insert(0, str(ROOT / "examples"))
    from train_digits import save_picture  # imports TensorFlow

    save_picture([own[0] for own in runs.values()], RESULTS / f"{date}-{name}.png")
    path = RESULTS / f"{date}-{name}.md"
    path.write_text(report(runs, seeds, date, name))
    print(path.read_text())


if __name__ == "__main__":
    main()
