"""Measure steps of `fit` while unauthenticated clients connect to the failure detector's port.

    python benchmarks/unauthenticated_clients.py [--clients 2000] [--rounds 20]

Two workers, which may open 1,024 files each, train a small MLP in rounds: with and without these
clients in turn. The clients have no token. Half of them send nothing, half send 1 MiB without the
end of a line; 100 of them are replaced per second. The clients run with the lowest priority, so
that their own work slows the training down as little as if they ran on other machines.

Writes benchmarks/results/DATE-unauthenticated_clients.md.
"""

import argparse
import collections
import contextlib
import os
import resource
import select
import socket
import subprocess
import sys

import numpy as np
import report

FILES = 1024
STEPS = 100
CALLS_PER_SECOND = 100


def call(port, clients):
    """Keep this number of connections to a port until stdin is closed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.nice(19)
    held, number = collections.deque(), 0
    while True:
        with contextlib.suppress(OSError):  # refused for now
            one = socket.create_connection(("127.0.0.1", port), timeout=1)
            held.append(one)
            one.setblocking(False)
            one.send(b" " * (1 << 20) * (number % 2))
        number += 1
        if number == clients:
            print("all have called", flush=True)
        if len(held) > clients:
            held.popleft().close()
        wait = 1 / CALLS_PER_SECOND if number >= clients else 0
        if select.select([sys.stdin], [], [], wait)[0]:
            return


@contextlib.contextmanager
def calling(port, clients):
    """Connect clients while the block runs. The block starts when all of them are connected."""
    command = [sys.executable, __file__, "--call", str(port), "--clients", str(clients)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        yield
        process.stdin.close()


class ModelUnderLoad:
    """A model that is trained while clients connect to the port of worker 0.

    Args:
        model: the model.
        port: the port of worker 0's health monitor; None on the other workers.
        clients: the number of clients.
    """

    def __init__(self, model, port, clients):
        self._model, self._port, self._clients = model, port, clients
        self.most_files = 0

    def fit(self, *arguments, **options):
        """Call the model's `fit`."""
        with contextlib.ExitStack() as stack:
            if self._port:
                stack.enter_context(calling(self._port, self._clients))
            self._model.fit(*arguments, **options)
            self.most_files = max(self.most_files, len(os.listdir("/proc/self/fd")))


def train(options):
    """Train on each worker, with and without clients."""
    import keras

    import tf_adasum
    from tf_adasum.health import monitor

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    strategy = tf_adasum.AdasumMirroredStrategy()
    (health,) = monitor._monitors.values()
    with strategy.scope():
        layers = [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu")]
        model = keras.Sequential([keras.layers.Input([64]), *layers, keras.layers.Dense(10)])
        model.compile("sgd", "mse")
    port = getattr(health._channel, "endpoint", {}).get("port")
    models = {
        "without": ModelUnderLoad(model, None, 0),
        "with": ModelUnderLoad(model, port, options.clients),
    }
    random = np.random.default_rng(0)
    rows = 256 * (STEPS + report.WARM_UP)
    x, y = (random.standard_normal([rows, size], "float32") for size in (64, 10))
    seconds = report.time_in_turn(models, x, y, batch_size=256, rounds=options.rounds)
    rates = {name: [len(each) / sum(each) for each in rounds] for name, rounds in seconds.items()}
    files = {name: one.most_files for name, one in models.items()}
    report.save(strategy, {"rates": rates, "files": files}, options.out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--call", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        return call(options.call, options.clients)
    if options.out:
        return train(options)
    arguments = ["--clients", str(options.clients), "--rounds", str(options.rounds)]
    measured = report.on_workers(2, __file__, *arguments)
    rates, files = measured["rates"], measured["files"]
    ratios = np.divide(rates["with"], rates["without"])
    rows = [[name, report.quartiles(rates[name], digits=1), files[name]] for name in rates]
    table = report.table(["clients", "steps per second", "open files of worker 0, at most"], rows)
    report.write(
        "unauthenticated_clients",
        "Steps of `fit` while unauthenticated clients connect",
        f"Two workers of one device with `ulimit -n {FILES}` train an MLP of 0.3 million "
        f"parameters, {options.rounds} rounds of {STEPS} steps with and without "
        f"{options.clients} clients in turn: medians of the rounds, and quartiles. Half of the "
        "clients say nothing, half send 1 MiB without the end of a line; each second "
        f"{CALLS_PER_SECOND} of them are replaced.\n\n{table}\n\nWith / without, of rounds that "
        f"follow each other: {report.quartiles(ratios)}.",
    )
    return None


if __name__ == "__main__":
    main()
