"""How much longer an exchange with Adasum takes than the sum, from the newest committed report."""

from experiments.experiment import Claim, Experiment, Report, Verdict
from experiments.page import ROOT, markdown, of_benchmarks

CLAIM = "Adasum's all-reduce takes 10 to 15 % longer than the all-reduce of the sum"
SOURCE = 'an article on Adasum; the authors\' slides say "almost negligible overhead"'
REPORTS = ROOT / "benchmarks" / "results"
WAY = "shared memory"  # UCX's, on one machine; TensorFlow's collectives do not know it
KINDS = {"adasum": "TensorFlow's collectives", "adasum; ucx": "UCX"}
SAME_TRANSPORT, SUM = "adasum", "sum"  # over TensorFlow's collectives
COMPARED = "kind / adasum"  # a column of the report
PUBLISHED = 1.15


def ratios(text):
    """Return how long each (kind, workers, gradients) of a report takes, the sum being 1.

    The report compares every kind with Adasum over TensorFlow's collectives, in neighbouring steps:
    what is returned is the quotient of two such medians.
    """
    to_adasum = {
        (row["kind"], row["workers"], row["gradients"]): float(row[COMPARED].split()[0])
        for row in of_benchmarks("report").tables(text)
        if row["way"] == WAY and row["kind"] in (SUM, *KINDS)
    }
    return {
        (kind, *where): ratio / to_adasum[(SUM, *where)]
        for (kind, *where), ratio in to_adasum.items()
        if kind != SUM
    }


class Latency(Experiment):
    """A table of the benchmark's medians."""

    name = "latency"
    title = "Latency"
    has_runs = False

    def report(self, results, figures):
        """Return the table and a verdict for each way to exchange."""
        path = max(REPORTS.glob("*-exchange_transport.md"))
        found = ratios(path.read_text())
        cases = sorted(dict.fromkeys(key[1:] for key in found), key=size)
        rows = [[*case, *(f"{found[(kind, *case)]:.2f}" for kind in KINDS)] for case in cases]
        header = ["workers", "gradients", *(f"Adasum over {name}" for name in KINDS.values())]
        said = [verdict(found, SAME_TRANSPORT)]  # UCX would be compared with another transport
        source = f"From the [report](../../benchmarks/results/{path.name})."
        return Report([Claim(CLAIM, SOURCE, said)], f"{markdown(header, rows)}\n\n{source}")


def size(case):
    """Return what cases of (workers, gradients) are sorted by: workers, then bytes; models last."""
    workers, gradients = case
    number, _, unit = gradients.partition(" ")
    return int(workers), {"KB": 1, "MB": 1000}.get(unit, 1e6) * (
        float(number) if unit in ("KB", "MB") else 1
    )


def verdict(found, kind):
    """Return where an exchange takes no longer than published, of (workers, gradients)."""
    own = {key[1:]: ratio for key, ratio in found.items() if key[0] == kind}
    within = [ratio for ratio in own.values() if ratio <= PUBLISHED]
    word = "partly" if within else "unconfirmed"
    if len(within) == len(own):
        word = "confirmed"
    numbers = {
        "of the sum's time": f"{min(own.values()):.2f} to {max(own.values()):.2f}",
        f"at most {PUBLISHED}": f"{len(within)} of {len(own)}",
    }
    return Verdict(word, f"over {KINDS[kind]}", numbers)


EXPERIMENT = Latency()
