"""Kill workers at random moments, and check that training ends with the same result.

    python benchmarks/restarts.py

The launcher starts two workers with `--max-restarts`, which make backups. This script SIGKILLs one
of them at a random moment, again and again: mostly while they train, write backups or validate,
every fourth time while they start. On each worker the weights, slots and last values of the logs
must be the same as in an undisturbed run, bit for bit. Writes benchmarks/results/DATE-restarts.md.
"""

import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import report

WORKERS = 2
BATCHES, EPOCHS, BATCH = 12, 4, 24
SECONDS_PER_STEP = 0.05  # at least, so that kills hit different moments of the training
SECONDS = 900  # after this time, a run counts as hanging


def train(folder, save_freq):
    """Train with backups on every worker, and save the final state."""
    import keras

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    rank = strategy.rank
    restart = os.environ["TF_ADASUM_RESTART_COUNT"]
    (folder / f"pid-{restart}-{rank}").write_text(str(os.getpid()))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([6]),
                keras.layers.Dense(32, activation="tanh"),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(1),
            ]
        )
        optimizer = tf_adasum.optimizers.DeltaAdasum(keras.optimizers.Adam(0.01), local_steps=3)
        model.compile(optimizer, "mse")
    x = np.random.default_rng(0).standard_normal([BATCH * BATCHES, 6]).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True))

    def take_time(batch, logs):
        if not (folder / f"trains-{restart}").exists():
            (folder / f"trains-{restart}").touch()
        time.sleep(SECONDS_PER_STEP)

    backup = tf_adasum.callbacks.BackupAndRestore(folder / "backup", save_freq=save_freq)
    slow = keras.callbacks.LambdaCallback(on_train_batch_end=take_time)
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "callbacks": [slow, backup]}
    history = model.fit(x, y, validation_data=(x[:BATCH], y[:BATCH]), **options)
    state = {str(i): v.numpy() for i, v in enumerate([*model.variables, *optimizer.variables])}
    last = {f"last {name}": values[-1] for name, values in history.history.items()}
    np.savez(folder / f"end-{rank}.npz", **state, **last)


def run(folder, save_freq, kills=0, seed=0, training=0.0):
    """Train once with a number of kills, each within the first `training` seconds of training.

    Returns:
        dict: "seconds", the time of the run; "training", the time from the first batch of the last
        start to the end; "moments", the kills; "end", the final state of each worker.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    arguments = [str(pathlib.Path(__file__).resolve()), "--folder", str(folder)]
    arguments += ["--save-freq", str(save_freq)]
    launcher = [sys.executable, "-m", "tf_adasum.launch", "-n", str(WORKERS)]
    launcher += ["--max-restarts", str(kills), "--timeout", str(SECONDS), *arguments]
    rng, moments, began = random.Random(seed), [], time.monotonic()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(launcher, cwd=report.ROOT, stdout=log, stderr=log)
        try:
            for restart in range(kills):
                moments += kill_one(folder, process, restart, rng, training)
            process.wait(SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    if process.returncode:
        raise RuntimeError((folder / "log").read_text(errors="replace")[-4000:])
    end = [dict(np.load(folder / f"end-{rank}.npz")) for rank in range(WORKERS)]
    first_batch = (folder / f"trains-{len(moments)}").stat().st_mtime
    return {
        "seconds": time.monotonic() - began,
        "training": (folder / "end-0.npz").stat().st_mtime - first_batch,
        "moments": moments,
        "end": end,
    }


def kill_one(folder, launcher, restart, rng, training):
    """Kill a worker of a start at a random moment; return [the kill], or [] if it was too late."""
    starts = rng.random() < 0.25
    worker = rng.randrange(WORKERS)
    delay = rng.uniform(0, 2 if starts else training)
    pids = [folder / f"pid-{restart}-{rank}" for rank in range(WORKERS)]
    trains = folder / f"trains-{restart}"
    while not (
        all(pid.exists() and pid.stat().st_size for pid in pids) and (starts or trains.exists())
    ):
        if launcher.poll() is not None:
            return []
        time.sleep(0.01)
    time.sleep(delay)
    try:
        os.kill(int(pids[worker].read_text()), signal.SIGKILL)
    except ProcessLookupError:  # it has already ended
        return []
    backups = sorted(path.stem for path in (folder / "backup").glob("*"))
    return [(worker, "start" if starts else "training", delay, backups[-1] if backups else "none")]


def same(ends, expected):
    """Return whether the final states are the same, bit for bit."""
    return all(
        own.keys() == other.keys() and all(own[n].tobytes() == other[n].tobytes() for n in own)
        for own, other in zip(ends, expected, strict=True)
    )


def write_report(rows, kills, seed):
    report.write(
        "restarts",
        "Workers killed at random moments: the same end as unbroken",
        f"{WORKERS} workers started by `tf-adasum-launch --max-restarts`, DeltaAdasum(Adam) with 3 "
        "local steps, dropout, BatchNormalization, shuffled arrays, validation; "
        f"{EPOCHS} epochs of {BATCHES} batches of at least {SECONDS_PER_STEP} s. {kills} times a "
        f"random worker got SIGKILL at a random moment, seed {seed}: after so many "
        "seconds of training, or of starting, since the start before. In brackets also the newest "
        "backup there was. Equal: weights, slots and last logs of both workers, bit for bit.\n\n"
        + report.table(["save_freq", "kills", "killed worker", "equal", "seconds"], rows),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20, help="how many kills altogether")
    parser.add_argument("--kills-per-run", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--save-freq", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        freq = arguments.save_freq
        freq = int(freq) if freq.isdecimal() else freq
        train(arguments.folder, freq)
        return
    rows, kills = [], 0
    with tempfile.TemporaryDirectory() as folder:
        unbroken = {}
        while kills < arguments.moments:
            number = len(rows)
            freq = ["epoch", 7][number % 2]
            if freq not in unbroken:
                unbroken[freq] = run(f"{folder}/unbroken-{freq}", freq)
            wanted = min(arguments.kills_per_run, arguments.moments - kills)
            training = unbroken[freq]["training"]
            broken = run(f"{folder}/{number}", freq, wanted, arguments.seed + number, training)
            kills += len(broken["moments"])
            equal = same(broken["end"], unbroken[freq]["end"])
            print(freq, broken["moments"], equal, f"{broken['seconds']:.0f} s", flush=True)
            when = "; ".join(f"{w} ({p} + {d:.1f} s, {b})" for w, p, d, b in broken["moments"])
            seconds = f"{broken['seconds']:.0f} ({unbroken[freq]['seconds']:.0f} unbroken)"
            rows.append([freq, len(broken["moments"]), when, "yes" if equal else "NO", seconds])
            write_report(rows, kills, arguments.seed)
    if any(row[3] != "yes" for row in rows):
        sys.exit("not the same")


if __name__ == "__main__":
    main()
