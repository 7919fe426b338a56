"""Measure the time until training continues after a host is lost or joins; needs root.

    python benchmarks/elastic.py [--times 10] [--hosts 4] [--workers 1]

Each of four hosts, network namespaces of this machine, runs the same `tf-adasum-launch --nnodes
2:4`. This script repeatedly kills a worker, removes a host or adds a host, and measures the time
until the next training step. Writes benchmarks/results/DATE-elastic.md.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import report
from slow_links import WITH_ITS_INTERFACES
from support import network

from experiments.comparison import with_range

PORT = 12345
VALIDATION = 300  # rows
ROWS, EPOCHS = 8, 12  # rows of a replica; epochs after the last event
SECONDS_PER_STEP = 0.05  # at least
SECONDS = 180  # limit for training to continue after an event
QUIET_SECONDS = 3  # of training between two events


def train(folder):
    """Train on digits until some epochs after the file "finish" appears.

    Record when each start has made its first step, and its last step so far.

    If there is a folder "rows", also record the rows of each step, in a file of each worker and
    start.
    """
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    import tf_adasum

    strategy = tf_adasum.AdasumMirroredStrategy()
    keras.utils.set_random_seed(int(os.environ.get("SEED", "0")))
    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target
    replicas, start = strategy.num_replicas_in_sync, os.environ.get("TF_ADASUM_RESTART_COUNT")
    rank = strategy.cluster_resolver.task_id or 0
    rows_file = folder / "rows" / f"{start}-{rank}-{replicas}"
    is_recording, rows_of_step = rows_file.parent.is_dir(), []
    if is_recording:  # the last column is the number of the row, 1 for the first row
        x = np.append(x, np.arange(-VALIDATION + 1, len(x) - VALIDATION + 1)[:, None], axis=1)
        x = x.astype("float32")

    class RowsOfStep(keras.layers.Layer):
        """Removes the last column, and adds its numbers to `rows_of_step`."""

        @tf.autograph.experimental.do_not_convert
        def call(self, x):
            def record(numbers):
                rows_of_step.extend(numbers.astype(int).tolist())
                return numbers

            numbers = tf.numpy_function(record, [x[:, 64]], tf.float32)
            with tf.control_dependencies([numbers]):
                return tf.identity(x[:, :64])

        def compute_output_shape(self, shape):
            return (shape[0], 64)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input([x.shape[1]]),
                *([RowsOfStep()] if is_recording else []),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        compiled = False if is_recording else "auto"
        model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=compiled)

    class Notes(keras.callbacks.Callback):
        """Records the steps of a start, and stops the training at the end."""

        is_first, left = True, EPOCHS

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if strategy.is_first_worker:
                for name in [f"step-{start}-{replicas}"] * self.is_first + [f"last-{start}"]:
                    (folder / "new").write_text(str(time.time()))
                    (folder / "new").rename(folder / name)
            self.is_first = False
            if is_recording:
                step = int(self.model.optimizer.iterations.numpy())
                with open(rows_file, "a") as file:
                    file.write(json.dumps([step, self.epoch, rows_of_step]) + "\n")
                rows_of_step.clear()
            time.sleep(SECONDS_PER_STEP)

        def on_epoch_end(self, epoch, logs=None):
            self.left -= (folder / "finish").exists()
            self.model.stop_training = self.left < 1

    backup = tf_adasum.callbacks.BackupAndRestore(folder / "backup", save_freq=10)
    model.fit(
        x[VALIDATION:],
        y[VALIDATION:],
        batch_size=ROWS * replicas,
        epochs=10_000,
        verbose=0,
        callbacks=[Notes(), backup],
    )
    _, accuracy = model.evaluate(x[:VALIDATION], y[:VALIDATION], batch_size=VALIDATION, verbose=0)
    if strategy.is_first_worker:
        (folder / "accuracy").write_text(str(accuracy))


class Job:
    """The launchers of all hosts.

    Args:
        folder: a folder that all hosts share.
        hosts: the `network.Network`.
        workers: the number of workers of each host.
    """

    def __init__(self, folder, hosts, workers):
        self.folder, self.network, self.workers = folder, hosts, workers
        self.count = len(hosts.hosts)
        self.minimum = self.count // 2  # hosts
        (folder / "tmp").mkdir()
        self.launchers = {}
        self.log = open(folder / "log", "a")

    def join(self, number):
        """Start the launcher of a host."""
        host = self.network.hosts[number]
        coordinator = f"{self.network.hosts[0].address}:{PORT}"
        launch = [sys.executable, "-m", "tf_adasum.launch"]
        launch += ["--nnodes", f"{self.minimum}:{self.count}"]
        launch += ["-n", self.workers, "--max-restarts", 1000, "--coordinator", coordinator]
        environment = {**os.environ, "TF_ADASUM_SECRET": "key", "PYTHONPATH": str(report.ROOT)}
        environment |= {"TMPDIR": str(self.folder / "tmp")}
        self.launchers[number] = host.popen(
            [*WITH_ITS_INTERFACES, "sh", *launch, __file__, "--train", self.folder],
            env=environment,
            stdout=self.log,
            stderr=self.log,
        )

    def steps(self):
        """Return the time and the number of replicas of the first step of each start."""
        found = {}
        for path in self.folder.glob("step-*"):
            _, start, replicas = path.name.split("-")
            found[int(start)] = float(path.read_text()), int(replicas)
        return found

    def seconds_until(self, hosts, since, limit=SECONDS):
        """Wait until training continues on this number of hosts.

        Returns:
            The seconds from the event until then, and for how many of them nothing was trained.
        """
        before = time.time()
        while time.time() < before + limit:
            for start, (at, replicas) in self.steps().items():
                if at > since and replicas == hosts * self.workers:
                    time.sleep(QUIET_SECONDS)
                    return at - since, at - self.last_step_before(start, at)
            time.sleep(0.05)
        raise TimeoutError(f"no step on {hosts} hosts: {(self.folder / 'log').read_text()[-5000:]}")

    def last_step_before(self, start, default=0.0):
        """Return when the starts before this one have made their last step."""
        files = [(int(path.name[5:]), path) for path in self.folder.glob("last-*")]
        found = [(number, path) for number, path in files if number < start]
        return float(max(found)[1].read_text()) if found else default

    def worker_processes(self, number):
        """Return the ids of the running workers of a host."""
        command = ["pgrep", "-r", "RSD", "-P", str(self.launchers[number].pid)]
        found = subprocess.run(command, capture_output=True, text=True).stdout
        return [int(process) for process in found.split()]

    def act(self, event, host, choose=max):
        """Make a host fail, leave or join; `choose` selects the worker that is killed."""
        if event == "a worker is killed":
            if processes := self.worker_processes(host):
                os.kill(choose(processes), signal.SIGKILL)
        elif event == "a host's launcher is killed":
            self.launchers[host].kill()
            self.launchers[host].wait()
        elif event == "a host is asked to stop":
            self.launchers[host].send_signal(signal.SIGTERM)
        elif event == "a host joins":
            self.join(host)
        elif event == "a host's network is cut":
            self.network.cut(host)
        else:
            self.network.heal()

    def happen(self, event):
        """Let an event happen to the last host; return the result of `seconds_until`."""
        last = self.count - 1
        if event == "a host joins":
            self.launchers[last].wait(60)
        since = time.time()
        self.act(event, last)
        return self.seconds_until(self.count - (event in LEAVING), since)


# After these events, training continues on fewer hosts.
LEAVING = ("a host's launcher is killed", "a host is asked to stop", "a host's network is cut")
EVENTS = (
    "a worker is killed",
    "a host's launcher is killed",
    "a host joins",
    "a host is asked to stop",
    "a host joins",
    "a host's network is cut",
    "a host's network is healed",
)


def disturbed(times, count, workers):
    """Return the results of each event, the final accuracy and the number of starts."""
    found = {event: [] for event in EVENTS}
    with tempfile.TemporaryDirectory() as folder, network.Network(count) as hosts:
        job = Job(pathlib.Path(folder), hosts, workers)
        for number in range(count):
            job.join(number)
        job.seconds_until(count, 0)
        for turn in range(times):
            for event in EVENTS:
                found[event].append(job.happen(event))
                print(turn, event, found[event][-1], flush=True)
        (job.folder / "finish").touch()
        statuses = [launcher.wait(SECONDS) for launcher in job.launchers.values()]
        if any(statuses):
            raise RuntimeError(f"{statuses}: {(job.folder / 'log').read_text()[-5000:]}")
        return found, float((job.folder / "accuracy").read_text()), len(job.steps())


def main():
    """Measure and write the report, or train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1, help="of each host")
    parser.add_argument("--train", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return
    found, accuracy, starts = disturbed(arguments.times, arguments.hosts, arguments.workers)
    rows = [
        [event, len(own), *(with_range(values, 1) for values in zip(*own, strict=True))]
        for event, own in found.items()
    ]
    plural = "s" * (arguments.workers > 1)
    all_seconds = [seconds for own in found.values() for seconds, _ in own]
    report.write(
        "elastic",
        "Hosts that are lost and join: time until training continues",
        f"{arguments.hosts} hosts, network namespaces of this machine, with {arguments.workers} "
        f"worker{plural} each, and `tf-adasum-launch --nnodes {arguments.hosts // 2}:"
        f"{arguments.hosts} --max-restarts 1000`. A small dense network learns digits, with "
        "`BackupAndRestore` after every 10 steps. Seconds: from the "
        "event until worker 0 has finished its next training step on the new "
        "hosts, median (lowest to highest). Pause: the part of this time in which nothing was "
        "trained. All hosts share the cores of this machine.\n\n"
        + report.table(["event", "times", "seconds", "pause"], rows)
        + f"\n\nMedian of all events: {np.median(all_seconds):.1f} s. All workers started {starts} "
        f"times. Accuracy at the end, {EPOCHS} epochs after the last event: {accuracy:.3f}.",
    )


if __name__ == "__main__":
    main()
