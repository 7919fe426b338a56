"""Measure the steps of workers behind slow links, and the bytes that they send; needs root.

    python benchmarks/slow_links.py [--mbit 10 100 1000]

Each worker runs on a separate host, a network namespace. `tc tbf` limits the rate of its link in
both directions. Writes benchmarks/results/DATE-slow_links.md.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import frameworks
import numpy as np
import report
from support import network

WORKERS, PORT = 4, 12345
SECONDS = 1500  # until the benchmark stops waiting for a worker
EPOCHS = 3  # measured epochs, after an epoch with tracing
# Arguments of the strategy, and the number of local steps (None: without DeltaAdasum).
METHODS = {
    "mean": ({"aggregation": "mean"}, None),
    "Adasum": ({}, None),
    "Adasum, bfloat16": ({"wire_dtype": "bfloat16"}, None),
    "DeltaAdasum, k = 4": ({}, 4),
    "DeltaAdasum, k = 16": ({}, 16),
    "DeltaAdasum, k = 64": ({}, 64),
}
SIZE = "1 MB"
# UCX looks for interfaces in /sys, and each network namespace has a separate /sys.
WITH_ITS_INTERFACES = ["unshare", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"']


class Links(contextlib.AbstractContextManager):
    """Hosts whose links to a bridge have a limited rate.

    Args:
        mbit: Mbit/s of each link, in each direction.
        hosts: the number of hosts.
        burst_ms: how long a link that was idle sends without the limit.
    """

    def __init__(self, mbit, hosts, burst_ms=8):
        self.switch = network.Host(97)
        self.hosts = [network.Host(number) for number in range(hosts)]
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        for host in self.hosts:
            port, device = f"port{host.number}", f"host{host.number}"
            link = ("link", "add", port, "type", "veth", "peer", "name", device)
            self.switch.run("ip", *link, "netns", host.holder)
            self.switch.run("ip", "link", "set", port, "master", "bridge", "up")
            host.run("ip", "link", "set", device, "name", "net0", "up")
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "net0")
            for own, name in ((host, "net0"), (self.switch, port)):
                burst = max(16, mbit * burst_ms // 8)  # kilobytes
                limit = ("rate", f"{mbit}mbit", "burst", f"{burst}kb", "latency", "100ms")
                own.run("tc", "qdisc", "add", "dev", name, "root", "tbf", *limit)

    def __exit__(self, *exception):
        for host in (*self.hosts, self.switch):
            host.close()


def missing():
    """Return why the hosts cannot be made here; None if they can."""
    return network.missing("tc") or network.reason_to_skip()


def sent():
    """Return the bytes that this host has sent."""
    lines = pathlib.Path("/proc/self/net/dev").read_text().splitlines()
    (line,) = (line for line in lines if line.strip().startswith("net0:"))
    return int(line.split()[9])


def work():
    """Measure all methods on this worker; return the result of `measured` for each."""
    import keras

    import tf_adasum

    found = {}
    for name, (options, local_steps) in METHODS.items():
        strategy = tf_adasum.AdasumMirroredStrategy(**options)
        with strategy.scope():
            optimizer = keras.optimizers.Adam(1e-4)
            if local_steps:
                optimizer = tf_adasum.optimizers.DeltaAdasum(optimizer, local_steps=local_steps)
            model = frameworks.model_of(SIZE)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer, loss)
        found[name] = measured(model, max(8, local_steps or 0), strategy)
    return found


def measured(model, steps, strategy):
    """Return seconds and sent bytes of a step in each epoch but the first, and the transport."""
    import keras

    found = {"seconds": [], "bytes": []}

    class Meter(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.perf_counter(), sent()

        def on_epoch_end(self, epoch, logs=None):
            now = time.perf_counter(), sent()
            if epoch:
                for name, before, after in zip(found, self.start, now, strict=True):
                    found[name].append((after - before) / steps)

    rows = frameworks.ROWS[SIZE] * strategy.num_replicas_in_sync
    x, y = frameworks.rows_of(SIZE, rows * steps)
    batch = {"batch_size": rows, "shuffle": False, "verbose": 0}
    model.fit(x, y, epochs=1 + EPOCHS, callbacks=[Meter()], **batch)
    return found | {"transport": summary_of(strategy)}


def summary_of(strategy):
    """Return the strategy's summary of its transport."""
    from tf_adasum.compat import tensorflow as tensorflow_compat

    return tensorflow_compat.cross_device_ops(strategy.extended).transport_summary


def on_links(
    mbit,
    script,
    *arguments,
    devices=1,
    hosts=WORKERS,
    workers_per_host=1,
    seconds=SECONDS,
    **options,
):
    """Run a script with ``--out FILE`` on the workers of each host; return worker 0's JSON.

    The workers are stopped after `seconds`. The other options are arguments of `Links`.
    """
    with Links(mbit, hosts, **options) as links, tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(hosts * workers_per_host):
            environment = {
                **os.environ,
                "TF_ADASUM_COORDINATOR": f"{links.hosts[0].address}:{PORT}",
                "TF_ADASUM_RANK": str(rank),
                "TF_ADASUM_WORLD_SIZE": str(hosts * workers_per_host),
                "TF_ADASUM_DEVICES_PER_WORKER": str(devices),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            }
            command = [*WITH_ITS_INTERFACES, "sh", sys.executable, script, *arguments]
            command += ["--out", pathlib.Path(folder, f"{rank}.json")]
            host = links.hosts[rank // workers_per_host]
            processes.append(host.popen(command, env=environment, stdout=subprocess.DEVNULL))
        deadline = time.monotonic() + seconds
        for rank, process in enumerate(processes):
            if status := process.wait(max(0.0, deadline - time.monotonic())):
                raise SystemExit(
                    f"Worker {rank} exited with status {status} on the link of {mbit} Mbit/s. "
                    "Its error is above."
                )
        return json.loads(pathlib.Path(folder, "0.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(work()))
        return
    if reason := missing():
        raise SystemExit(reason)
    found = {mbit: on_links(mbit, __file__) for mbit in arguments.mbit}
    rows = []
    for name in METHODS:
        own = [of_link[name] for of_link in found.values()]
        sizes = [size for each in own for size in each["bytes"]]
        rows.append([name, f"{np.median(sizes) / 1e6:.3f}"])
        for each, of_link in zip(own, found.values(), strict=True):
            ratio = np.median(each["seconds"]) / np.median(of_link["mean"]["seconds"])
            rows[-1] += [report.quartiles(each["seconds"], 1000, 1), f"{ratio:.2f}"]
    header = ["method", "MB sent"]
    header += [text for mbit in found for text in (f"{mbit} Mbit/s, ms", f"{mbit} Mbit/s, / mean")]
    summaries = {each["transport"] for of_link in found.values() for each in of_link.values()}
    report.write(
        "slow_links",
        "Steps of workers behind slow links",
        f"{WORKERS} workers, each on a separate host (a network namespace) whose link `tc tbf` "
        "limits in both directions; all share this machine's cores. A dense model of 1 MB of "
        f"parameters, {frameworks.ROWS[SIZE]} rows of each worker, Adam. *ms*: a step of `fit` on "
        f"worker 0, median (quartiles) of {EPOCHS} epochs. An epoch has 8 steps, or k if k is "
        "larger, so the time and the bytes of a combination are divided by k. *MB sent*: in a "
        "step, by worker 0, as its network interface counts them, with headers, median of all "
        "links. */ mean*: median time divided by the median time of the mean on the same link. "
        "The bfloat16 bucket of 0.5 MB is gathered whole.\n\n"
        f"Transports: {'; '.join(sorted(summaries))}\n\n" + report.table(header, rows),
    )


if __name__ == "__main__":
    main()
