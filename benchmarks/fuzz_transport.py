"""Compare the bits of random exchanges over UCX and over TensorFlow, and kill workers.

    python benchmarks/fuzz_transport.py [--exchanges 20000] [--minutes 60] [--devices 1 2]

Groups of two, three and four workers with one or two devices start in turn, over shared memory and
over TCP. They exchange gradients of random shapes, dtypes and sizes, with random rules, radix
plans, wire dtypes and bucket sizes, some of them at the same time. Each exchange goes over both
transports, and its results are compared bit for bit, on each replica and between all replicas. Then
one worker receives SIGKILL in the middle of exchanges over UCX. The others must raise a
`WorkerLostError` that names it, and exit; then the next group starts. (The processes are forks,
which exit without Python's normal shutdown.)

Writes benchmarks/results/DATE-fuzz_transport.md.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import numpy as np
import report

sys.path[:0] = [str(report.ROOT / "tests" / "multi_worker"), str(report.ROOT / "tests")]

from support.worker_group import free_ports, worker_environment  # noqa: E402 - on the path above

# Workers are forks of a process that has imported TensorFlow, because the import takes longer than
# everything else.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["keras", "tf_adasum"])

WORKERS, DEVICES = (2, 3, 4), (1, 2)
TLS = {"TCP": "tcp,self", "shared memory": "posix,cma,tcp,self"}
EXCHANGES_OF_A_START = 400
LONGEST_QUIET = 1.0  # maximum seconds of exchanges before a worker is killed
SECONDS = 400.0  # after this time without output, a worker counts as hanging
SECONDS_TO_END = 30.0  # limit for the exit of the other workers after a kill
PROMPT = 2.0  # seconds in which the other workers should exit

# ---- in a worker --------------------------------------------------------------------------------

RULES = ["adasum", "adasum model", "adacons", "adacons variable", "sum", "mean"]
DTYPES = ["float32", "float64", "bfloat16", "float16"]
LARGEST, LARGEST_OF_ALL = 300_000, 3_000_000  # elements: limits of most and of all lists
BYTES_AT_ONCE = 2.5e8  # of all replicas' gradients in one call
# Limits for the iterations of an exchange, each with new random numbers: the minimum, and the
# maximum for all replicas together.
FEWEST, MOST_OF_ALL = 3, 400


def draw(rng, replicas):
    """Draw what a call exchanges; return it as plain data, the same on all workers."""
    rule = rng.choice(RULES)
    drawn = {
        "rule": rule,
        "bytes_per_pack": rng.choice([0, 4000, 100_000, 2_000_000]),
        "gathers_small_buckets": rng.random() < 0.3,
        "at_once": rng.choice([1, 10]),  # parallel iterations
        "lists": [_list(rng, replicas) for _ in range(rng.choice([1, 2, 2, 3]))],
        "options": {},
    }
    drawn["options"]["wire_dtype"] = rng.choice([None, None, "bfloat16", "float16"])
    across = replicas
    if replicas > 2 and replicas % 2 == 0 and rng.random() < 0.2:
        drawn["options"]["local_reduction_size"], across = 2, replicas // 2
    if rule in ("adasum", "sum", "mean") and rng.random() < 0.7:
        drawn["options"]["radix_plan"] = rng.choice(list(_plans(across)))
    size = sum(np.prod(each["shape"]) for own in drawn["lists"] for each in own)
    times = BYTES_AT_ONCE / (16 * replicas * size)
    drawn["times"] = int(np.clip(times, FEWEST, MOST_OF_ALL // replicas))
    return drawn


def _list(rng, replicas):
    """Return a list of gradients. Some of them are sparse."""
    largest = LARGEST_OF_ALL if rng.random() < 0.1 else LARGEST
    dtypes = rng.sample(DTYPES, rng.choice([1, 1, 2]))
    gradients = []
    for _ in range(rng.randint(1, 5)):
        size = int(np.exp(rng.uniform(0, np.log(largest / 3))))
        shape = rng.choice([[size], [size, 3], [3, size]])
        gradients.append(
            {
                "shape": shape,
                "dtype": rng.choice(dtypes),
                "scale": 10.0 ** rng.randint(-3, 2),
                "sparse": len(shape) == 2 and rng.random() < 0.2,
                "zero": rng.randrange(replicas) if rng.random() < 0.1 else None,
                "seed": rng.randrange(2**31),
            }
        )
    return gradients


def _plans(count):
    """Yield all factorizations of a number."""
    if count == 1:
        yield []
    for factor in range(2, count + 1):
        if count % factor == 0:
            yield from ([factor, *rest] for rest in _plans(count // factor))


def gradient(drawn, iteration, replica):
    """Return a replica's gradient: a part that all replicas share, plus a part that differs."""
    import tensorflow as tf

    dtype = tf.as_dtype(drawn["dtype"])
    in_common, own = ([drawn["seed"], 100 * iteration + n] for n in (99, replica))
    shape = drawn["shape"]
    if drawn["sparse"]:
        rows = tf.random.stateless_uniform([], own, 0, min(shape[0], 1000) + 1, tf.int32)
        indices = tf.random.stateless_uniform(rows[None], own, 0, shape[0], tf.int64)
        values = tf.random.stateless_normal(tf.stack([rows, shape[1]]), own)
    else:
        values = tf.random.stateless_normal(shape, in_common)
        values += tf.random.stateless_normal(shape, own)
    values = tf.cast(drawn["scale"] * values, dtype)
    if drawn["zero"] is not None:
        values = tf.where(replica == drawn["zero"], tf.zeros_like(values), values)
    if drawn["sparse"]:
        values = tf.ensure_shape(values, [None, shape[1]])
        return tf.IndexedSlices(values, indices, tf.constant(shape, tf.int64))
    return values


def bits(value):
    """Return the bits of a tensor's elements, as int64 ``[n]``."""
    import tensorflow as tf

    value = tf.convert_to_tensor(value)
    kind = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}[value.dtype.size]
    return tf.reshape(tf.bitcast(tf.cast(tf.bitcast(value, kind), tf.uint64), tf.int64), [-1])


def differ(some, others):
    """Return, as a tensor, whether two lists of tensors have different bits."""
    import tensorflow as tf

    pairs = zip(some, others, strict=True)
    return tf.reduce_any([tf.reduce_any(bits(one) != bits(other)) for one, other in pairs])


def digest(tensors):
    """Return a checksum of the tensors' bits, in which each element has a different weight."""
    import tensorflow as tf

    total = tf.zeros([], tf.int64)
    for tensor in tensors:
        own = bits(tensor)
        total = 31 * total + tf.reduce_sum(own * (2 * tf.range(tf.size(own, tf.int64)) + 1))
    return total


class Program:
    """A traced function that exchanges gradients again and again.

    Args:
        strategy: a strategy with the transport UCX.
        drawn: the result of `draw`.
        names: the transports: ["ucx"] or ["tensorflow", "ucx"].
    """

    def __init__(self, strategy, drawn, names):
        import tensorflow as tf
        from scenarios import aggregation, basics

        from tf_adasum.compat import tensorflow as tensorflow_compat

        self._strategy, self._drawn, self._names = strategy, drawn, names
        self._ucx = tensorflow_compat.cross_device_ops(strategy.extended).transport
        rule = aggregation.RULES[drawn["rule"]]()
        basics.use_rule(strategy, rule, **drawn["options"])
        self._markers = {(name, n): self._marker(n) for name in names for n in self._numbers()}
        number = tf.TensorSpec([], tf.int32)
        with (
            contextlib.nullcontext()
            if drawn["gathers_small_buckets"]
            else aggregation.without_small_bucket_gathering()
        ):
            function = tf.function(self._exchanges, autograph=False)
            self._function = function.get_concrete_function(number)

    def __call__(self, times):
        """Return how often the bits differ, and the digests; both have ``[lists, devices]``."""
        import tensorflow as tf

        return [each.numpy().tolist() for each in self._function(tf.constant(times))]

    def _numbers(self):
        return range(len(self._drawn["lists"]))

    def _marker(self, number):
        from tf_adasum.compat import tensorflow as tensorflow_compat

        size = self._drawn["bytes_per_pack"]
        paths = [f"{number}/{place}" for place in range(len(self._drawn["lists"][number]))]
        state = self._strategy._aggregation_state(paths)
        return tensorflow_compat.GradientReduction(size).for_variables(state, range(len(paths)))

    def _exchanges(self, times):
        import tensorflow as tf

        shape = [len(self._drawn["lists"]), len(self._strategy.extended.worker_devices)]
        start = (tf.constant(0), tf.zeros(shape, tf.int64), tf.zeros(shape, tf.int64))
        _, differing, digests = tf.while_loop(
            lambda iteration, *_: iteration < times,
            self._exchange,
            start,
            parallel_iterations=self._drawn["at_once"],
        )
        return differing, digests

    def _exchange(self, iteration, differing, digests):
        import tensorflow as tf
        from scenarios import basics

        combined = {}
        for name in self._names:
            with basics.over(self._strategy, self._ucx if name == "ucx" else None):
                for n in self._numbers():
                    combined[name, n] = self._combined(name, n, iteration)
        pairs = [
            [combined[self._names[0], n], combined[self._names[-1], n]] for n in self._numbers()
        ]
        by_device = [list(zip(*pair, strict=True)) for pair in pairs]
        news = [[tf.cast(differ(*both), tf.int64) for both in each] for each in by_device]
        own = [[digest(one) for _, one in each] for each in by_device]
        return iteration + 1, differing + tf.stack(news), 31 * digests + tf.stack(own)

    def _combined(self, name, number, iteration):
        """Return the combined gradients on each local device."""
        import tensorflow as tf

        def in_replica():
            context = tf.distribute.get_replica_context()
            replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
            own = [gradient(each, iteration, replica) for each in self._drawn["lists"][number]]
            return context.all_reduce("SUM", own, options=self._markers[name, number])

        results = [
            self._strategy.experimental_local_results(each)
            for each in self._strategy.run(in_replica)
        ]
        return list(zip(*results, strict=True))


def say(**words):
    print(json.dumps(words), flush=True)


def work(log, environment, exchanges, seed):
    """Compare a number of exchanges, and then exchange without end until a worker is killed.

    Args:
        log: the path of the output.
        environment: the environment variables to set.
        exchanges: the number of exchanges to compare.
        seed: the random seed, the same on all workers.
    """
    with open(log, "wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.environ.update(environment)
    import tf_adasum

    rng, done = random.Random(seed), 0
    try:
        strategy = tf_adasum.AdasumMirroredStrategy(transport="ucx")
        replicas = strategy.num_replicas_in_sync
        with strategy.working_together():
            while done < exchanges:
                drawn = draw(rng, replicas)
                differing, digests = Program(strategy, drawn, ["tensorflow", "ucx"])(drawn["times"])
                say(drawn=drawn, differing=differing, digests=digests)
                done += drawn["times"] * len(drawn["lists"])
            endless = Program(strategy, draw(rng, replicas), ["ucx"])
            endless(1)
            say(endless=True)
            endless(2**31 - 1)
    except BaseException as error:
        say(error=type(error).__name__, message=str(error), time=time.monotonic())
        raise


# ---- workers -----------------------------------------------------------------------------------


class Start:
    """A group of workers that exchange gradients until one is killed.

    Args:
        folder: an empty folder.
        workers: the number of workers.
        devices: the number of devices of each worker.
        tls: the value of UCX_TLS.
        exchanges: the number of exchanges to compare.
        seed: the random seed.

    Attributes:
        exchanges: the number of compared exchanges.
        differing: the number of exchanges whose bits differ between the transports.
        unequal: the number of lists whose bits differ between the replicas.
        wrong: all problems, as texts.
        seconds_to_error, seconds_to_end: times of each other worker after the kill.
    """

    def __init__(self, folder, workers, devices, tls, exchanges, seed):
        self.exchanges = self.differing = self.unequal = 0
        self.wrong, self.seconds_to_error, self.seconds_to_end = [], [], []
        self._chance = random.Random(f"kill {seed}")
        self._logs = [folder / f"{rank}.log" for rank in range(workers)]
        self._processes, ports = [], free_ports(workers)
        for rank, path in enumerate(self._logs):
            path.touch()
            environment = worker_environment(ports, rank, devices) | {"UCX_TLS": tls}
            arguments = (path, environment, exchanges, seed)
            process = FORKS.Process(target=work, args=arguments)
            process.start()
            self._processes.append(process)

    def run(self):
        """Wait for the exchanges, kill a worker, and record what the others do."""
        try:
            if self._exchanged():
                self._kill_one()
        finally:
            for process in self._processes:
                process.kill()
                process.join()
            self._compare()

    def _said(self, rank):
        """Return the messages that a worker has printed so far."""
        lines = self._logs[rank].read_text(errors="replace").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line[0] == "{" and line.endswith("}\n")]

    def _exchanged(self):
        """Wait until all workers exchange without end; return False if one of them fails."""
        sizes, heard = None, time.monotonic()
        while True:
            if not all(process.is_alive() for process in self._processes):
                time.sleep(PROMPT)
                return self._fail("ended by itself")
            now = [path.stat().st_size for path in self._logs]
            if now != sizes:
                sizes, heard = now, time.monotonic()
                if all("endless" in (self._said(n) or [{}])[-1] for n in range(len(now))):
                    return True
            if time.monotonic() > heard + SECONDS:
                return self._fail(f"said nothing for {SECONDS:.0f} s")
            time.sleep(0.1)

    def _fail(self, what):
        ends = [path.read_text(errors="replace")[-1500:] for path in self._logs]
        self.wrong.append(f"a worker {what}: {ends}")
        return False

    def _kill_one(self):
        time.sleep(self._chance.uniform(0, LONGEST_QUIET))
        victim = self._chance.randrange(len(self._processes))
        begun, ends = time.monotonic(), {}
        os.kill(self._processes[victim].pid, signal.SIGKILL)
        others = [rank for rank in range(len(self._processes)) if rank != victim]
        while len(ends) < len(others) and time.monotonic() < begun + SECONDS_TO_END:
            for rank in others:
                if rank not in ends and not self._processes[rank].is_alive():
                    ends[rank] = time.monotonic() - begun
            time.sleep(0.005)
        for rank in others:
            said = self._said(rank)[-1]
            names_it = f"worker {victim} (" in said.get("message", "")
            if said.get("error") != "WorkerLostError" or not names_it or rank not in ends:
                log = self._logs[rank].read_text(errors="replace")[-1500:]
                self.wrong.append(f"worker {victim} was killed, worker {rank} says {said}: {log}")
            if "time" in said:
                self.seconds_to_error.append(said["time"] - begun)
            if rank in ends:
                self.seconds_to_end.append(ends[rank])

    def _compare(self):
        """Count the exchanges that all workers have finished, and their differences."""
        said = [[each for each in self._said(n) if "drawn" in each] for n in range(len(self._logs))]
        for of_all in zip(*said, strict=False):
            drawn = of_all[0]["drawn"]
            self.exchanges += drawn["times"] * len(drawn["lists"])
            differing = np.max([each["differing"] for each in of_all], axis=(0, 2)).sum()
            digests = np.array([each["digests"] for each in of_all])
            unequal = int((digests != digests[:1, :, :1]).any(axis=(0, 2)).sum())
            self.differing += int(differing)
            self.unequal += unequal
            if differing or unequal:
                self.wrong.append(f"{differing} differ, {unequal} lists are unequal: {drawn}")


def spread(seconds):
    return f"{np.median(seconds):.2f}, {max(seconds):.2f}" if seconds else "-"


def write_report(starts, seed):
    header = ["workers", "devices", "UCX over", "starts", "exchanges", "other bits"]
    header += ["replicas unequal", "kills", "named", "s to the error", "s to the end"]
    rows = []
    kinds = list(dict.fromkeys(kind for kind, _ in starts))
    for kind in [*kinds, ("all", "", "")]:
        own = [start for each, start in starts if kind in (each, ("all", "", ""))]
        errors, ends = ([s for each in own for s in seconds(each)] for seconds in (_errors, _ends))
        kills = sum(bool(each.seconds_to_error or each.seconds_to_end) for each in own)
        named = sum(bool(each.seconds_to_error) and not each.wrong for each in own)
        counts = [sum(c) for c in zip(*map(_counts, own), strict=True)]
        rows.append([*kind, len(own), *counts, kills, named, spread(errors), spread(ends)])
    late = sum(s > PROMPT for _, start in starts for s in start.seconds_to_end)
    later = sum(s > PROMPT for _, start in starts for s in start.seconds_to_error)
    wrong = [
        f"start {n} {kind}: {w}" for n, (kind, start) in enumerate(starts) for w in start.wrong
    ]
    report.write(
        "fuzz_transport",
        "Random exchanges over UCX, and workers killed in them",
        "Gradients of random shapes, dtypes and values, sparse ones too, by random rules, radix "
        f"plans, dtypes on the wire and sizes of buckets, seed {seed}. Each exchange went over UCX "
        "and over TensorFlow's collectives, under the mean as a sum of the same order; *other "
        "bits*: the results differ between them. Then one worker got SIGKILL in the middle of "
        "exchanges over UCX; *named*: all others raised a `WorkerLostError` that names it, and "
        "ended. Seconds from the kill: median, largest; the processes are forks, which end without "
        "what Python does at its end.\n\n"
        + report.table(header, rows)
        + f"\n\nOf the others {later} raised the error, and {late} ended, after more than "
        f"{PROMPT:.0f} s. Load average of a minute at the end: {os.getloadavg()[0]:.1f}."
        + "".join(f"\n\nWrong: `{' '.join(each.split())}`" for each in wrong),
    )
    return wrong


def _errors(start):
    return start.seconds_to_error


def _ends(start):
    return start.seconds_to_end


def _counts(start):
    return start.exchanges, start.differing, start.unequal


def run(arguments, starts):
    """Start groups until enough exchanges are done; append the kind and the `Start` of each."""
    deadline, done = time.monotonic() + 60 * arguments.minutes, 0
    kinds = itertools.cycle(itertools.product(arguments.devices, arguments.workers, TLS))
    for number, (devices, workers, tls) in enumerate(kinds):
        if done >= arguments.exchanges or time.monotonic() > deadline:
            return
        wanted = min(arguments.per_start, arguments.exchanges - done)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            seed = f"{arguments.seed} {number}"
            start = Start(pathlib.Path(folder), workers, devices, TLS[tls], wanted, seed)
            starts.append(((workers, devices, tls), start))
            start.run()
        done += start.exchanges
        seconds = [[round(s, 2) for s in each(start)] for each in (_errors, _ends)]
        took = f"{time.monotonic() - begun:.0f} s"
        print(workers, devices, tls, *_counts(start), *seconds, took, *start.wrong, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exchanges", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no group starts")
    parser.add_argument("--per-start", type=int, default=EXCHANGES_OF_A_START)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    starts = []
    try:
        run(arguments, starts)
    finally:
        wrong = write_report(starts, arguments.seed) if starts else []
    if wrong:
        sys.exit("not the same")


if __name__ == "__main__":
    main()
