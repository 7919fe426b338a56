"""Simulate the exchange of gradients on up to 1024 replicas of four clusters, with SimGrid.

    python benchmarks/simulate_clusters.py

Nothing is measured. A schedule has the messages of the package's exchange, see `schedule`. SimGrid
computes how long these messages take on the networks of simgrid_network.py, which runs with
Debian's python3-simgrid. To find the best plan, all plans of Adasum's tree are simulated, which
takes half an hour. Writes benchmarks/results/DATE-simulate_clusters.md.
"""

import argparse
import json
import pathlib
import subprocess

import report

PYTHON = "/usr/bin/python3"  # with Debian's package python3-simgrid
SIMULATOR = pathlib.Path(__file__).with_name("simgrid_network.py")
REPLICAS = [8, 64, 256, 1024]
MEGABYTES = [10, 100, 1000]
VARIABLES = 160
STEP_MS = 180.0  # on one device
MOST_ON_ONE_LEVEL = 256  # with more replicas, one level is not simulated
MOST_IN_BEST = 64  # replicas on a level of the best plan
SECONDS_OF_MESSAGE = 5e-6  # of the processor, for each message
SECONDS_OF_PRODUCT = 5e-13  # for each byte, at 2 TB/s of memory bandwidth
# Replicas per host, and the bandwidth of a device's and of a host's link in bytes per second.
CLUSTERS = {
    "NVLink, 4 x 200 Gbit/s": (8, 300e9, 100e9),
    "cloud, 25 Gbit/s": (8, 12e9, 3.125e9),
    "fat tree, 100 Gbit/s": (1, 12.5e9, 12.5e9),
    "dragonfly, 100 Gbit/s": (1, 12.5e9, 12.5e9),
}
DEFAULT, BEST = "default plan", "best plan"
FLAT, HALVING = "one level", "pairs of pairs"
HOROVOD, RING = "mean on each host, then pairs of pairs", "mean by a ring"
ALGORITHMS = (DEFAULT, BEST, FLAT, HALVING, HOROVOD, RING)


def schedule(plan, size, segments):
    """Return the phases of `simgrid_network` for one bucket, each with its repetitions.

    Args:
        plan: the radices of the levels. The first may be the number of replicas that are averaged.
        size: bytes of the bucket.
        segments: the number of inner products of two replicas on each level; 0 on a level that
            averages.
    """
    from tf_adasum.aggregation import buckets, groups

    pieces = max(1, round(size / buckets.PIECE_BYTES))
    phases, stride = [], 1
    for radix, count in zip(plan, segments, strict=True):
        phases.append((("direct", stride, radix, size / stride / radix / pieces), 2 * pieces))
        stride *= radix
        gram = 8 * count * radix * (radix + 1) // 2
        if gram and stride * gram <= groups.GATHERED_SUM_BYTES:
            phases.append((("direct", 1, stride, gram), 1))
        elif gram:  # an all-to-all and an all-gather of shards, as over UCX
            phases.append((("direct", 1, stride, gram / stride), 2))
    return phases


def products(plan, size, segments):
    """Return the bytes that a replica multiplies and adds, once for each multiplication."""
    found, own = 0.0, size
    for radix, count in zip(plan, segments, strict=True):
        found += own * ((radix + 1) / 2 + 1 if count else 1)
        own /= radix
    return found


def plans_of(cluster, replicas, size, segments):
    """Return the plan of each algorithm, and of each plan of Adasum's tree, with its segments."""
    from tf_adasum.aggregation import Scheme, radix_plans
    from tf_adasum.aggregation.rules import Adasum

    per_host, _, _ = CLUSTERS[cluster]
    has_hosts = 1 < per_host < replicas
    scheme = Scheme(Adasum(), replicas, replicas_per_host=per_host if has_hosts else 1)
    halving = (2,) * (replicas.bit_length() - 1)
    found = {DEFAULT: scheme.plan(size, segments), HALVING: halving}
    if replicas <= MOST_ON_ONE_LEVEL:
        found[FLAT] = (replicas,)
    for plan in radix_plans.tree_plans(replicas):
        if max(plan) <= MOST_IN_BEST:
            found[plan] = plan
    found = {name: (plan, [segments] * len(plan)) for name, plan in found.items()}
    if has_hosts:
        above = halving[: (replicas // per_host).bit_length() - 1]
        found[HOROVOD] = (per_host, *above), [0, *[segments] * len(above)]
    return found


def bucket_of(megabytes):
    """Return the number of buckets, and the shapes of the variables of one bucket."""
    from tf_adasum.aggregation import buckets

    size = megabytes * 1e6
    count = max(1, round(size / buckets.DEFAULT_BUCKET_BYTES))
    variables = max(1, VARIABLES // count)
    return count, [[int(size / count / variables / 4)]] * variables


def jobs_of(cluster):
    """Return the jobs of a cluster: number of buckets, phases and arithmetic seconds of each."""
    jobs = {}
    for replicas in REPLICAS:
        for megabytes in MEGABYTES:
            count, shapes = bucket_of(megabytes)
            size = 4.0 * sum(shape for (shape,) in shapes)
            for name, own in plans_of(cluster, replicas, size, len(shapes)).items():
                phases = schedule(own[0], size, own[1])
                seconds = SECONDS_OF_PRODUCT * products(own[0], size, own[1])
                jobs[replicas, megabytes, name] = count, phases, seconds
            ring = [(("ring", 1, replicas, size / replicas), 2 * (replicas - 1))]
            jobs[replicas, megabytes, RING] = count, ring, SECONDS_OF_PRODUCT * size
    return jobs


def simulated(cluster):
    """Return the seconds of the exchange for each number of replicas, size and algorithm."""
    jobs = jobs_of(cluster)
    phases = sorted({(*phase, key[0]) for key, (_, own, _) in jobs.items() for phase, _ in own})
    done = subprocess.run(
        [PYTHON, SIMULATOR],
        input=json.dumps({"cluster": cluster, "phases": phases}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = dict(zip(phases, json.loads(done.stdout.splitlines()[0]), strict=True))
    found = {}
    for (replicas, megabytes, name), (count, own, others) in jobs.items():
        total = others
        for phase, times in own:
            kind, _, radix, _ = phase
            messages = 1 if kind == "ring" else radix - 1
            total += times * (seconds[(*phase, replicas)] + messages * SECONDS_OF_MESSAGE)
        found[replicas, megabytes, name] = count * total
    return found


def best_of(found, replicas, megabytes):
    """Return the plan that takes the least time."""
    plans = [key for key in found if key[:2] == (replicas, megabytes) and type(key[2]) is tuple]
    return min(plans, key=found.get)[2]


def rows_of(cluster, found):
    """Yield the rows of a cluster's table."""
    for replicas in REPLICAS:
        for megabytes in MEGABYTES:
            cells, best = [], best_of(found, replicas, megabytes)
            for name in ALGORITHMS:
                seconds = found.get((replicas, megabytes, best if name == BEST else name))
                if seconds is None:
                    cells.append("–")
                    continue
                efficiency = STEP_MS / (STEP_MS + 1000 * seconds)
                cells.append(f"{1000 * seconds:.1f} ({100 * efficiency:.0f} %)")
            ratio = found[replicas, megabytes, DEFAULT] / found[replicas, megabytes, best]
            cells += [f"{ratio:.2f}", list(best)]
            yield [replicas, megabytes, *cells]


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    found_of = {cluster: simulated(cluster) for cluster in CLUSTERS}
    header = ["replicas", "MB", *ALGORITHMS, f"default / {BEST.split()[0]}", "which is"]
    tables = "\n" + "\n\n".join(
        f"## {cluster}\n\n{report.table(header, rows_of(cluster, found))}"
        for cluster, found in found_of.items()
    )
    report.write(
        "simulate_clusters",
        "Simulated exchanges on up to 1024 replicas",
        "Simulations with SimGrid, not measurements. A cell has the milliseconds of one exchange, "
        "and in parentheses the efficiency: the time of a step on one device "
        f"({STEP_MS:g} ms) divided by the time of the step with the exchange, which does not "
        f"overlap with it. The gradients are {VARIABLES} variables of float32 of the same size. "
        "All messages of a collective start together, and a collective starts when the one before "
        "has ended. Each message takes "
        f"{1e6 * SECONDS_OF_MESSAGE:g} µs of the processor, and the arithmetic runs at 2 TB/s. "
        f"*{HALVING}* is the recursive vector halving of the Adasum paper. *{HOROVOD}* is the "
        "hierarchical mode of Horovod. Inner products are exchanged as in this package; the "
        "published implementations use an all-reduce with fewer messages. The best plan is the "
        f"fastest of all plans of Adasum's tree with up to {MOST_IN_BEST} members on a level. A "
        "ring is simulated for one round. If a collective has more than 16,384 messages, each "
        "replica sends the bytes of all its messages to one member, and the time is the mean for 8 "
        "members. The fat tree has half as many links up as down. The "
        "networks are in "
        f"benchmarks/simgrid_network.py.\n{tables}",
    )


if __name__ == "__main__":
    main()
