"""Simulate the exchange of gradients on up to 1024 replicas of four clusters, with SimGrid.

    python benchmarks/simulate_clusters.py

Nothing is measured. The package itself makes the schedule: its exchange is traced on replica 0 with
collectives that only record groups and bytes. SimGrid then computes how long these messages take on
the networks of simgrid_network.py, which runs with Debian's python3-simgrid. Writes
benchmarks/results/DATE-simulate_clusters.md, and a picture in docs/images.
"""

import argparse
import json
import pathlib
import subprocess

import report

PYTHON = "/usr/bin/python3"  # with Debian's package python3-simgrid
SIMULATOR = pathlib.Path(__file__).with_name("simgrid_network.py")
PICTURE = report.ROOT / "docs" / "images" / "simulated-clusters.svg"
REPLICAS = [8, 64, 256, 1024]
MEGABYTES = [10, 100, 1000]
VARIABLES = 160
STEP_MS = 180.0  # on one device
MOST_ON_ONE_LEVEL = 256  # with more replicas, one level is not simulated
SECONDS_OF_MESSAGE = 5e-6  # of the processor, for each message
SECONDS_OF_PRODUCT = 5e-13  # for each byte, at 2 TB/s of memory bandwidth
# Replicas per host, and the bandwidth of a device's and of a host's link in bytes per second.
CLUSTERS = {
    "NVLink, 4 x 200 Gbit/s": (8, 300e9, 100e9),
    "cloud, 25 Gbit/s": (8, 12e9, 3.125e9),
    "fat tree, 100 Gbit/s": (1, 12.5e9, 12.5e9),
    "dragonfly, 100 Gbit/s": (1, 12.5e9, 12.5e9),
}
DEFAULT, FLAT, HALVING = "plan by the cost model", "one level", "pairs of pairs"
HOROVOD, RING = "mean on each host, then pairs of pairs", "mean by a ring"
ALGORITHMS = (DEFAULT, FLAT, HALVING, HOROVOD, RING)


class Recorder:
    """Collectives of replica 0 in one group, which record the phases of `simgrid_network`."""

    def __init__(self, phases, stride, radix):
        self._phases, self._stride, self._radix = phases, stride, radix

    def all_to_all(self, shards):
        """Record a message with a shard to each other member."""
        self._record("direct", size_of(shards) / self._radix, 1)
        return shards

    def all_reduce(self, value):
        """Record an all-to-all and an all-gather of shards, as over UCX."""
        for _ in range(2):
            self._record("direct", size_of(value) / self._radix, 1)
        return value

    def all_gather(self, value):
        """Record a message with the value to each other member."""
        import tensorflow as tf

        self._record("direct", size_of(value), 1)
        return tf.concat([value] * self._radix, axis=0)

    def _record(self, kind, size, times):
        self._phases.append(((kind, self._stride, self._radix, size), times))


def size_of(tensor):
    """Return the bytes of a tensor."""
    return tensor.shape.num_elements() * tensor.dtype.size


def schedule(scheme, shapes, default_costs):
    """Return the phases of the package's own exchange of one bucket, each with its repetitions."""
    import tensorflow as tf

    from tf_adasum.aggregation import CollectiveReductionPlanner, aggregate
    from tf_adasum.aggregation.groups import CollectiveGroup

    phases = []

    def group_of(stride, radix):
        return CollectiveGroup(Recorder(phases, stride, radix), range(radix), 0)

    planner = CollectiveReductionPlanner(scheme, group_of, default_costs=default_costs)
    with tf.Graph().as_default():
        gradients = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]
        aggregate([gradients], planner, 2**40)
    return phases


def schemes(cluster, replicas):
    """Return the `Scheme` of each algorithm that uses the package's exchange, and its costs."""
    from tf_adasum.aggregation import Scheme
    from tf_adasum.aggregation.cost_model import CostModel, Hosts
    from tf_adasum.aggregation.rules import Adasum

    per_host, inside, outside = CLUSTERS[cluster]
    costs = CostModel(SECONDS_OF_MESSAGE, 1 / inside, SECONDS_OF_PRODUCT)
    hosts = Hosts(per_host, 0.0, 1 / outside) if 1 < per_host < replicas else None
    halving = (2,) * (replicas.bit_length() - 1)
    found = {
        DEFAULT: Scheme(Adasum(), replicas, costs=costs, hosts=hosts),
        HALVING: Scheme(Adasum(), replicas, radix_plan=halving),
    }
    if replicas <= MOST_ON_ONE_LEVEL:
        found[FLAT] = Scheme(Adasum(), replicas, radix_plan=(replicas,))
    if hosts:
        above = halving[: (replicas // per_host).bit_length() - 1]
        found[HOROVOD] = Scheme(Adasum(), replicas, per_host, radix_plan=above)
    return found, costs


def bucket_of(megabytes):
    """Return the number of buckets, and the shapes of the variables of one bucket."""
    from tf_adasum.aggregation import buckets

    size = megabytes * 1e6
    count = max(1, round(size / buckets.DEFAULT_BUCKET_BYTES))
    variables = max(1, VARIABLES // count)
    return count, [[int(size / count / variables / 4)]] * variables


def jobs_of(cluster):
    """Return the jobs of a cluster: number of buckets, phases and arithmetic seconds of each."""
    from tf_adasum.aggregation import cost_model

    jobs = {}
    for replicas in REPLICAS:
        for megabytes in MEGABYTES:
            count, shapes = bucket_of(megabytes)
            size = 4.0 * sum(shape for (shape,) in shapes)
            found, costs = schemes(cluster, replicas)
            for name, scheme in found.items():
                plan = scheme.plan(size, len(shapes), costs)
                averaged = (scheme.local_reduction_size,) * (scheme.local_reduction_size > 1)
                products = cost_model.amounts((*averaged, *plan), size, len(shapes))[2]
                phases = schedule(scheme, shapes, costs)
                jobs[replicas, megabytes, name] = count, phases, SECONDS_OF_PRODUCT * products
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


def rows_of(cluster, found):
    """Yield the rows of a cluster's table."""
    for replicas in REPLICAS:
        for megabytes in MEGABYTES:
            cells = []
            for name in ALGORITHMS:
                seconds = found.get((replicas, megabytes, name))
                if seconds is None:
                    cells.append("–")
                    continue
                efficiency = STEP_MS / (STEP_MS + 1000 * seconds)
                cells.append(f"{1000 * seconds:.1f} ({100 * efficiency:.0f} %)")
            yield [replicas, megabytes, *cells]


def draw(text):
    """Draw the efficiency over the number of replicas, for the gradients of 100 MB in a report."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tf_adasum"
    from matplotlib import pyplot

    sections = text.split("\n## ")[1:]
    figure, axes = pyplot.subplots(1, len(sections), figsize=(11, 3.2), sharey=True)
    for axis, section in zip(axes, sections, strict=True):
        rows = [row for row in report.tables(section) if row["MB"] == "100"]
        for number, name in enumerate(ALGORITHMS):
            points = [(int(row["replicas"]), row[name]) for row in rows if row[name] != "–"]
            milliseconds = [float(cell.partition(" ")[0]) for _, cell in points]
            efficiency = [100 * STEP_MS / (STEP_MS + each) for each in milliseconds]
            style = {"color": f"C{number}", "linestyle": ("-", "--")[number == 3]}
            axis.plot([n for n, _ in points], efficiency, marker=".", label=name, **style)
        axis.set_xscale("log", base=2)
        axis.set_xticks(REPLICAS, map(str, REPLICAS))
        axis.set_ylim(0, 102)
        axis.set_title(section.partition("\n")[0], fontsize=9)
        axis.set_xlabel("replicas")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("efficiency, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=5, fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(PICTURE, metadata={"Date": None})


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    found_of = {cluster: simulated(cluster) for cluster in CLUSTERS}
    header = ["replicas", "MB", *ALGORITHMS]
    tables = "\n" + "\n\n".join(
        f"## {cluster}\n\n{report.table(header, rows_of(cluster, found))}"
        for cluster, found in found_of.items()
    )
    draw(tables)
    report.write(
        "simulate_clusters",
        "Simulated exchanges on up to 1024 replicas",
        "Simulations with SimGrid, not measurements. A cell has the milliseconds of one exchange, "
        "and in parentheses the efficiency: the time of a step on one device "
        f"({STEP_MS:g} ms) divided by the time of the step with the exchange, which does not "
        f"overlap with it. The gradients are {VARIABLES} variables of float32 of the same size. "
        "The package itself makes the schedule of the messages; all messages of a collective start "
        "together, and a collective starts when the one before has ended. Each message takes "
        f"{1e6 * SECONDS_OF_MESSAGE:g} µs of the processor, and the arithmetic runs at 2 TB/s. "
        f"*{HALVING}* is the recursive vector halving of the Adasum paper. *{HOROVOD}* is the "
        "hierarchical mode of Horovod. Inner products are exchanged as in this package; the "
        "published implementations use an all-reduce with fewer messages. The cost model has the "
        "bandwidths of the network. A ring is simulated for one round. If a collective has more "
        "than 16,384 messages, each replica sends the bytes of all its messages to one member, and "
        "the time is the mean for 8 members. The fat tree has half as many links up as down. The "
        "networks are in "
        f"benchmarks/simgrid_network.py.\n{tables}",
    )


if __name__ == "__main__":
    main()
