"""Run the package on this machine's GPUs, and write one report: `make gpu-report`.

    python benchmarks/gpu_report.py                on 1 to 8 NVIDIA GPUs, ten minutes
    python benchmarks/gpu_report.py --dry          tiny models on two CPU devices, to try the script

Parts, which --parts selects: `doctor`, the installation; `tests`, the tests of the op on a GPU;
`kernels`, kernels_gpu.py, if PyTorch is installed; `fit`, three models with Adasum, the
mean and TensorFlow's MirroredStrategy; `profile`, one step of two models; `workers`, two processes,
and `-n auto`. With one GPU, TensorFlow divides it into two logical GPUs. NCCL runs only if each
replica has a GPU of its own.

The processes of a comparison (gpu_fit.py) warm up together and then take turns: in each round,
every strategy is timed once, and a ratio compares the times of one round. A part that cannot run,
or that takes too long, is listed with the reason. The report is benchmarks/results/
DATE-gpu_report-CARD.md, or in the folder of --out.
"""

import argparse
import collections
import importlib.util
import json
import os
import platform
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import gpu_profile
import numpy as np
import report

from tf_adasum.cluster.ports import free_ports

STRATEGIES = ("adasum", "mean", "stock")
# Model, precision, XLA.
CASES = [
    ("resnet50", "float32", False),
    ("resnet50", "mixed_bfloat16", False),
    ("transformer", "float32", False),
    ("transformer", "mixed_bfloat16", False),
    ("embeddings", "float32", False),
    ("resnet50", "mixed_bfloat16", True),
    ("transformer", "mixed_bfloat16", True),
]
PROFILED = [("resnet50", "mixed_bfloat16", False), ("transformer", "mixed_bfloat16", False)]
# MiB of GPU memory that a replica needs.
MEMORY = {"resnet50": 7000, "transformer": 7000, "embeddings": 3500}
ROUNDS, STEPS, WARM_UP_SECONDS, TURN_SECONDS = 5, 15, 240, 60
HERE = Path(__file__).resolve().parent


class Skipped(Exception):
    """The reason why a part has no result."""


def cards():
    """Return the name, the driver and the free MiB of each GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.free"]
    try:
        lines = subprocess.run(
            [*query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60
        ).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.count(",") == 2]
    return [(name, driver, int(free)) for name, driver, free in rows if free.isdigit()]


def run(command, seconds, environment=None):
    """Return the output of a command.

    Raises:
        Skipped: if it fails or takes longer.
    """
    try:
        ended = subprocess.run(
            command,
            cwd=report.ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"took longer than {seconds} s") from error
    if ended.returncode:
        raise Skipped(last_error(ended.stdout) or f"exit status {ended.returncode}")
    return ended.stdout


def last_error(output):
    """Return the last line that names an error, in 300 characters."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"Error|error:|failed|Failed", line)]
    return (errors or lines or [""])[-1][:300]


class Process:
    """gpu_fit.py with its own standard streams."""

    def __init__(self, arguments, environment=None):
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_fit.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            env={**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true", **(environment or {})},
        )
        self.stdin = self._process.stdin
        self._answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("@@"):
                self._answers.put(json.loads(line[2:]))
        self._answers.put(None)

    def answer(self, seconds):
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise Skipped(f"no answer in {seconds} s") from None
        if answer is None:
            self._errors.seek(0)
            raise Skipped(last_error(self._errors.read()) or "ended without an error")
        return answer

    def ask(self, command, seconds):
        try:
            print(command, file=self.stdin, flush=True)
        except BrokenPipeError:
            pass  # `answer` reads why the process ended
        return self.answer(seconds)

    def end(self):
        self._process.kill()
        self._process.wait()
        self.stdin.close()
        self._process.stdout.close()
        self._errors.close()


# ---- fit -----------------------------------------------------------------------------------------


def waves(cases, replicas, gpus):
    """Return the cases in groups whose processes fit into the memory of the GPUs together."""
    if not gpus:
        return [[case] for case in cases]
    shared = -(-replicas // len(gpus))  # replicas on the same GPU
    budget = 0.9 * min(free for _, _, free in gpus)
    groups, used = [[]], 0
    for case in cases:
        need = MEMORY[case[0]] * shared * len(STRATEGIES)
        if groups[-1] and used + need > budget:
            groups.append([])
            used = 0
        groups[-1].append(case)
        used += need
    return groups


def measure_wave(cases, arguments, replicas, notes, profiles):
    """Return a row of the table for each case; the strategies take turns."""
    processes = {}
    for model, precision, jit in cases:
        for strategy in STRATEGIES:
            options = ["--model", model, "--precision", precision, "--strategy", strategy]
            options += ["--replicas", replicas, "--memory", MEMORY[model]]
            options += ["--jit"] * jit + ["--dry"] * arguments.dry
            processes[model, precision, jit, strategy] = Process(options)
    seconds, rows = collections.defaultdict(list), []
    failed, first, last = {}, {}, {}
    deadline = time.monotonic() + WARM_UP_SECONDS

    def ask(key, command, limit):
        """Return the answer of a process, or None if it failed now or before."""
        if key in failed:
            return None
        process = processes[key]
        try:
            return process.ask(command, limit) if command else process.answer(limit)
        except Skipped as reason:
            failed[key] = reason
            notes.append(f"`fit`, {' '.join(map(str, key))}: {reason}")
            return None

    try:
        for key in processes:
            first[key] = ask(key, None, max(deadline - time.monotonic(), 5))
            print("ready", *key, first[key], flush=True)
        for case in cases:
            keys = [(*case, strategy) for strategy in STRATEGIES]
            for _ in range(arguments.rounds):
                for key in keys:
                    answer = ask(key, f"time {arguments.steps}", TURN_SECONDS)
                    seconds[key].append(answer["seconds"] if answer else np.nan)
            for key in keys:
                if case in PROFILED and key[-1] != "stock":
                    folder = tempfile.mkdtemp()
                    if ask(key, f"profile {folder}", TURN_SECONDS):
                        profiles[key] = folder
            for key in keys:
                last[key] = ask(key, "end", 30)
            rows.append(row(case, seconds, first, last))
            print(rows[-1], flush=True)
    finally:
        for process in processes.values():
            process.end()
    return rows


def row(case, seconds, first, last):
    """Return one row of the table of `fit`."""
    model, precision, jit = case
    keys = [(*case, strategy) for strategy in STRATEGIES]
    ours = np.array(seconds[keys[0]])
    known = next((first[key] for key in keys if first[key]), {})
    cells = [model, precision, "on" if jit else "off", known.get("rows", "—")]
    cells += [report.quartiles(seconds[key], 1e3) if last[key] else "—" for key in keys]
    for key in keys[1:]:
        both = last[keys[0]] and last[key]
        ratios = ours / np.array(seconds[key])
        cells.append(report.quartiles(ratios, digits=3) if both else "—")
    ends = [last[key] for key in keys]
    cells.append(" / ".join(f"{e['peak_bytes'] / 2**20:,.0f}" if e else "—" for e in ends))
    equal = ["—" if not e else "no" if e["variables_that_differ"] else "yes" for e in ends[:2]]
    return [*cells, " / ".join(equal)]


COLUMNS = ["model", "precision", "XLA", "samples a step", "Adasum, ms", "mean, ms"]
COLUMNS += ["MirroredStrategy, ms", "Adasum / mean", "Adasum / MirroredStrategy"]
COLUMNS += [
    "peak MiB of a replica (Adasum / mean / MirroredStrategy)",
    "equal bits on replicas (Adasum / mean)",
]


def fit(arguments, gpus, replicas, notes, profiles):
    """Return the section of `fit`."""
    cases = [case for case in CASES if arguments.models is None or case[0] in arguments.models]
    if arguments.dry:
        cases = [case for case in cases if not case[2] and case[1] == "float32"]
        notes.append("Mixed precision, XLA, and the profile of a step: a dry run")
    rows = []
    for wave in waves(cases, replicas, gpus):
        rows += measure_wave(wave, arguments, replicas, notes, profiles)
    if not rows:
        raise Skipped("no case ran")
    return (
        f"{replicas} replicas, {arguments.rounds} rounds of {arguments.steps} steps, SGD with "
        "momentum 0.9, generated inputs. Milliseconds of a step and ratios: median (quartiles) of "
        f"the rounds.\n\n{report.table(COLUMNS, rows)}"
    )


# ---- the other parts -----------------------------------------------------------------------------


def doctor(arguments, gpus, replicas, notes):
    output = run([sys.executable, "-m", "tf_adasum.doctor"], 120)
    root = str(report.ROOT) + os.sep
    lines = [line for line in output.splitlines() if re.match(r"(ok|note|warn|fail)", line)]
    lines = [line.replace(root, "") for line in lines]
    return "```\n" + "\n".join(lines) + "\n```"


def tests(arguments, gpus, replicas, notes):
    if not gpus:
        raise Skipped("no GPU")
    path = "tests/unit/ops/test_kernels.py"
    output = run([sys.executable, "-m", "pytest", "-q", "-k", "gpu", path], 200)
    return f"`pytest {path} -k gpu`: {output.strip().splitlines()[-1]}"


def kernels(arguments, gpus, replicas, notes):
    if not gpus:
        raise Skipped("no GPU; `python benchmarks/kernels_gpu.py --emulated` is the dry run")
    if not importlib.util.find_spec("torch"):
        raise Skipped("PyTorch is not installed")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "kernels_gpu.py"), "--no-compile", "--rounds", "5"]
        run([*command, "--out", folder], 240)
        return next(Path(folder).glob("*.md")).read_text().split("\n\n", 2)[2]


def workers(arguments, gpus, replicas, notes):
    """Two processes on the first two GPUs, or both on the only one; then `-n auto`."""
    with free_ports(2) as ports:
        addresses = [f"localhost:{port}" for port in ports]
    options = ["--model", "embeddings", "--strategy", "adasum", "--replicas", 1]
    options += ["--memory", MEMORY["embeddings"], "--ring", *["--dry"] * arguments.dry]
    started = []
    for index in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {"TF_CONFIG": json.dumps(task)}
        if len(gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(index)
        started.append(Process(options, environment))
    try:
        for process in started:
            process.answer(120)
        seconds = []
        for _ in range(3):
            for process in started:
                print("time 10", file=process.stdin, flush=True)
            seconds.append(max(process.answer(TURN_SECONDS)["seconds"] for process in started))
    finally:
        for process in started:
            process.end()
    lines = [f"Two processes, embeddings, Adasum: {report.quartiles(seconds, 1e3)} ms a step."]
    if len(gpus) < 2:
        found = "one GPU, and NCCL needs one for each replica" if gpus else "no GPU"
        notes.append(f"NCCL, `-n auto` on several GPUs: {found}")
    else:
        command = [sys.executable, "-m", "tf_adasum.launch", "-n", "auto", "--timeout", "200"]
        run([*command, "examples/train_digits.py", "--rule", "adasum", "--epochs", "1"], 240)
        lines.append(f"`tf-adasum-launch -n auto`: {len(gpus)} workers trained.")
    return "\n".join(lines)


PARTS = {"doctor": doctor, "tests": tests, "kernels": kernels, "fit": fit, "workers": workers}
TITLES = {
    "doctor": "Installation",
    "tests": "Tests of the op",
    "kernels": "Kernels",
    "fit": "fit",
    "profile": "Where the time of a step goes",
    "workers": "Several processes",
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="tiny models, without GPUs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", help="only these models")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    arguments = parser.parse_args()
    gpus = [] if arguments.dry else cards()
    if not gpus and not arguments.dry:
        sys.exit("gpu_report: nvidia-smi finds no GPU. `--dry` tries the script without one.")
    if arguments.dry:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    replicas = max(2, len(gpus))
    sections, notes, profiles = [], [], {}
    for part in arguments.parts:
        began = time.monotonic()
        try:
            extra = [profiles] if part == "fit" else []
            text = PARTS[part](arguments, gpus, replicas, notes, *extra)
            sections.append(f"## {TITLES[part]}\n\n{text}")
        except Skipped as reason:
            notes.append(f"{TITLES[part]}: {reason}")
        print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
        if part == "fit" and profiles:
            tables = [gpu_profile.section(key, folder) for key, folder in profiles.items()]
            sections.append(f"## {TITLES['profile']}\n\n" + "\n\n".join(tables))
    if notes:
        sections.append("## Not run, and why\n\n" + "\n".join(f"- {note}" for note in notes))
    card = gpus[0][0] if gpus else "no GPU"
    cards_here = f"{len(gpus)} × {card}, driver {gpus[0][1]}" if gpus else "no GPU, a dry run"
    if not gpus:
        sections.insert(0, "**A dry run without a GPU: these numbers mean nothing.**")
    machine = (
        f"{cards_here}, {os.cpu_count()} CPU cores, {platform.machine()}. "
        f"{report.versions()}, NumPy {version('numpy')}"
    )
    name = "gpu_report-" + re.sub(r"[^a-z0-9]+", "-", card.removeprefix("NVIDIA ").lower())
    title = f"The package on {card}"
    report.write(
        name.strip("-"), title, "\n\n".join(sections), machine=machine, folder=arguments.out
    )


if __name__ == "__main__":
    main()
