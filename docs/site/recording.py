"""A recording of a terminal: four workers, one is killed and named, all go on to the same end.

    python docs/site/recording.py           plays it, and writes docs/images/restart.json and .svg
    python docs/site/recording.py --draw    draws what was recorded

The program below trains twice by `tf-adasum-launch`: undisturbed, and with SIGKILL for worker 2
after the third epoch. What is shown is what the launcher printed, when it did; lines that are left
out are counted.
"""

import argparse
import html
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "images"
PROGRAM = """
import zlib

import keras
import numpy as np
import tf_adasum

strategy = tf_adasum.AdasumMirroredStrategy()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
y = np.sin(x).sum(axis=1, keepdims=True)
with strategy.scope():
    layers = [keras.Input([8]), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")


def tell(epoch, logs):
    if strategy.is_first_worker:
        print(f"epoch {epoch + 1} of 6: loss {logs['loss']:.6f}", flush=True)


callbacks = [
    keras.callbacks.LambdaCallback(on_epoch_end=tell),
    tf_adasum.callbacks.BackupAndRestore("backup"),
]
model.fit(x, y, batch_size=256, epochs=6, verbose=0, callbacks=callbacks)
if strategy.is_first_worker:
    print(f"checksum of the weights: {zlib.crc32(b''.join(map(bytes, model.get_weights()))):08x}")
"""
COMMANDS = {
    "undisturbed": "tf-adasum-launch -n 4 train.py",
    "killed": "tf-adasum-launch -n 4 --max-restarts 1 train.py",
}
KILLED, AFTER = 2, "epoch 3"
KILL = f"kill -9 $(pid of worker {KILLED})"
SHOWN = re.compile(r"tf-adasum-launch:|\[worker 0\] (tf_adasum: (?!SIGTERM)|epoch|checksum)")
COLUMNS, LINE, TOP, LEFT = 100, 18, 44, 76
STYLE = """
.ground { fill: #f6f8fa; stroke: #d1d9e0 } .ink { fill: #1f2328 } .faint { fill: #59636e }
.said { fill: #0b6bcb } .bad { fill: #cf222e } .good { fill: #1a7f37; font-weight: bold }
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }
g { animation: come 0.2s both } @keyframes come { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { g { animation: none } }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .faint { fill: #9198a1 }
.said { fill: #58a6ff } .bad { fill: #ff7b72 } .good { fill: #3fb950 } }
"""


def play(command, folder, kills):
    """Run a command, and return its lines with the seconds from the kill, or from its start."""
    arguments = [sys.executable, "-m", "tf_adasum.launch", *command.split()[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    begin, lines = time.monotonic(), []
    with subprocess.Popen(arguments, cwd=folder, env=environment, **options) as launcher:
        for line in launcher.stdout:
            lines.append([round(time.monotonic() - begin, 2), line.rstrip()])
            if kills and AFTER in line:
                os.kill(process_of(launcher.pid, KILLED), signal.SIGKILL)
                kills, begin = False, time.monotonic()
                lines = [[round(seconds - lines[-1][0], 2), text] for seconds, text in lines]
                lines.append([0.0, f"$ {KILL}"])
    assert launcher.returncode == 0, lines[-20:]
    return lines


def process_of(launcher, rank):
    """Return the process of a worker, by what the launcher has given it."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f'"index": {rank}' in Path(f"/proc/{child}/environ").read_text():
            return int(child)
    raise LookupError(f"no worker {rank}")


def shortened(lines):
    """Return the lines to show; others that follow each other become one that counts them."""
    found, left_out = [], 0
    for seconds, text in [*lines, [0, "$"]]:
        if SHOWN.match(text) or text.startswith("$"):
            if left_out:
                found.append([found[-1][0], f"… {left_out} lines of TensorFlow and of tracebacks"])
            found, left_out = [*found, [seconds, text]], 0
        else:
            left_out += 1
    return found[:-1]


def record():
    """Play both, and return what was recorded."""
    load = round(os.getloadavg()[0])  # of others
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(PROGRAM.lstrip())
        lines = {
            name: shortened(play(command, folder, kills=name == "killed"))
            for name, command in COMMANDS.items()
        }
    return {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "load": load, **lines}


def rows(recorded):
    """Yield what stands in each row: the time, the text, how it looks, and whether it goes on."""
    yield "", f"$ {COMMANDS['undisturbed']}", "ink", False
    for _, text in recorded["undisturbed"][-2:]:
        yield "", text, "good" if "checksum" in text else "faint", False
    yield "", "", "ink", False
    yield "", f"$ {COMMANDS['killed']}", "ink", False
    for seconds, text in recorded["killed"]:
        time_shown = f"{seconds:5.1f} s" if seconds >= 0 and text[0] != "…" else ""
        kind = "faint" if text.startswith("…") or "epoch" in text else "said"
        kind = "bad" if "$" in text or "was lost" in text or "SIGKILL" in text else kind
        kind = "good" if "checksum" in text else kind
        parts = textwrap.wrap(text, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
        for index, part in enumerate(parts):
            yield "" if index else time_shown, part, kind, index > 0


def draw(recorded):
    """Return the picture."""
    all_rows, parts, seconds = list(rows(recorded)), [], 0.0
    height = TOP + LINE * len(all_rows) + 14
    for index, (when, text, kind, goes_on) in enumerate(all_rows):
        y = TOP + LINE * index
        seconds += 0 if goes_on or not text else 0.5
        parts.append(
            f'<g style="animation-delay: {seconds:.1f}s">'
            f'<text x="{LEFT - 8}" y="{y}" class="faint" text-anchor="end">{when.strip()}</text>'
            f'<text x="{LEFT}" y="{y}" class="{kind}">{html.escape(text, quote=False)}</text></g>'
        )
    title = (
        "Four workers train; worker 2 is killed, the others name it, the launcher starts all "
        "again, and the weights at the end are those of the undisturbed run"
    )
    where = f"{recorded['cores']} cores under a load of {recorded['load']}"
    caption = f"Seconds from the kill on. One machine with {where}, {recorded['date']}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" width="880" '
        f'role="img"><title>{title}</title><style>{STYLE}</style>\n'
        f'<rect class="ground" x="0.5" y="0.5" width="879" height="{height - 1}" rx="6"/>\n'
        f'<text x="{LEFT}" y="20" class="faint">{caption}</text>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main():
    """Record unless only drawing is asked for, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", action="store_true", help="draw what was recorded")
    record_file = FOLDER / "restart.json"
    if not parser.parse_args().draw:
        record_file.write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n")
    recorded = json.loads(record_file.read_text())
    (FOLDER / "restart.svg").write_text(draw(recorded))


if __name__ == "__main__":
    main()
