"""Write the generated parts of README and of pages in docs: `benchmarks/exchange.py --extend`.

Nothing is measured here. The tables hold the results of the newest reports.
"""

import re

import numpy as np
import report
from exchange_transport import ALONE, HOROVOD, TRANSPORTS, UCX

DOCUMENTS = report.ROOT / "docs"
FRAMEWORKS = ("stock strategy (1)", "Horovod 0.28 (2)", "Keras on JAX (2)", "tf_adasum")
ROUNDING = "## Rounding on the wire"  # in the report of benchmarks/exchange.py


def newest(name):
    """Return the path of the newest report DATE-name.md."""
    reports = report.RESULTS.glob(f"????-??-??-{name}.md")
    return max(reports, key=lambda path: path.name)


def parts():
    """Return a dict from documents to dicts from the names of parts to their texts."""
    return {
        "how_to/slow_links.md": {
            "slow links": slow_links_part(),
            "rounding on the wire": rounding_part(),
        },
        "kernels.md": {"gpu kernels": gpu_kernels_part()},
        "transport.md": {"exchange": exchange_part(), "steps of fit": steps_part()},
        "clusters.md": {"start time": start_time_part()},
        "launcher.md": {"small steps": small_steps_part()},
        "how_to/elastic.md": {"elastic": elastic_part(), "elastic others": elastic_others_part()},
        "evidence/many_hosts.md": {
            "benchmark hosts": hosts_part(),
            "benchmark simulated clusters": simulated_clusters_part(),
        },
        "evidence/slow_links.md": {
            "benchmark uneven hosts": uneven_hosts_part(),
            "benchmark overlap": overlap_part(),
        },
        "evidence/local_steps.md": {"benchmark slow accuracy": slow_accuracy_part()},
        "../README.md": {"frameworks": frameworks_part()},
    }


def rounding_part():
    path = newest("exchange")
    found = path.read_text().partition(ROUNDING)[2].strip()
    if not found:
        raise ValueError(f"{path.name} has no “{ROUNDING}”; run python benchmarks/exchange.py")
    return from_report(found, path, of_folder=True)


def from_report(text, path, of_folder=False):
    """Return the text and a link to its report, for a page in docs/ or in a subfolder."""
    up = "../../" if of_folder else "../"
    return f"{text}\n\nFrom the [report]({up}benchmarks/results/{path.name})."


def exchange_part():
    path = newest("exchange_transport")
    found = {
        (row["gradients"], row["workers"], row["way"], row["kind"]): row
        for row in report.tables(path.read_text())
    }
    rows = [
        [
            *case,
            *(
                found[(*case, way, kind)][f"kind / {other}"].partition(" ")[0]
                for way in TRANSPORTS
                for kind, other in ((UCX, "adasum"), (ALONE, HOROVOD))
            ),
        ]
        for case in sorted(dict.fromkeys(key[:2] for key in found), key=workers_and_bytes)
    ]
    header = ["gradients", "workers"]
    header += [f"{way}, / {other}" for way in TRANSPORTS for other in ("TensorFlow's", "Horovod's")]
    return from_report(report.table(header, rows), path)


def workers_and_bytes(case):
    """Return a sort key: the workers, then the size; a model, which has no unit, comes last."""
    gradients, workers = case
    number, _, unit = gradients.partition(" ")
    kilobytes = {"KB": 1, "MB": 1000}.get(unit)
    return int(workers), int(number) * kilobytes if kilobytes else np.inf


def gpu_kernels_part():
    """Return the tables of the CUDA kernels on large float32 and bfloat16 arrays, by GPU."""
    newest_of_gpu = {}
    for path in sorted(report.RESULTS.glob("????-??-??-kernels_gpu-pairwise-*.md")):
        gpu = path.read_text().partition("\nMachine: ")[2].partition(",")[0]
        newest_of_gpu[gpu] = path
    return "\n\n".join(gpu_kernels_table(gpu, newest_of_gpu[gpu]) for gpu in sorted(newest_of_gpu))


def gpu_kernels_table(gpu, pairwise):
    """Return the table of one GPU, from its report `pairwise` and the report of the row kernels."""
    rows = pairwise.with_name(pairwise.name.replace("-pairwise-", "-rows-"))
    table, baselines = [], ["PyTorch", "torch.compile"]
    for row in report.tables(pairwise.read_text()):
        size = int(row["elements"].replace(",", ""))
        if row["segments"] == "1" and size > 25_000_000 and row["type"] in ("float32", "bfloat16"):
            ratios = [row["default / 5N"], *(row[f"{name} / default"] for name in baselines)]
            table.append(["`pairwise_combine`", row["type"], 2, row["elements"], *ratios])
    operations = {"## Gram": "`segment_gram`", "## Weighted sum": "`segment_weighted_sum`"}
    for heading, operation in operations.items():
        section = rows.read_text().partition(heading)[2].partition("\n## ")[0]
        for row in report.tables(section):
            if row["segments"] == "1" and row["R"] in ("2", "16"):
                ratios = [row["time / floor"], *(row[f"{name} / ours"] for name in baselines)]
                table.append([operation, row["type"], row["R"], row["elements"], *ratios])
    table = [[*row[:4], *(cell.partition(" ")[0] for cell in row[4:])] for row in table]
    header = ["operation", "type", "R", "elements", "our time / copy's time"]
    header += [f"{name}'s time / our time" for name in baselines]
    links = ", ".join(
        f"[{name}](../benchmarks/results/{path.name})"
        for name, path in (("two rows", pairwise), ("R rows", rows))
    )
    return f"On an {gpu}, from the reports {links}:\n\n{report.table(header, table)}"


def steps_part():
    path = newest("step_time_transport")
    names = {"adasum": "adasum over TensorFlow's collectives"}
    rows = [
        [names.get(kind, kind), *times]
        for kind, *times in map(dict.values, report.tables(path.read_text()))
    ]
    header = ["step of `fit`", "milliseconds", "/ stock"]
    return from_report(report.table(header, rows), path)


def slow_links_part():
    """Return the table of steps over slow links."""
    path = newest("slow_links")
    rows = report.tables(path.read_text())
    header = [name for name in rows[0] if not name.endswith("/ mean")]
    cells = [[row[name].partition(" (")[0] for name in header] for row in rows]
    text = "Time of a step of `fit` on 4 workers, and MB that worker 0 sends in a step:"
    return f"{text}\n\n{from_report(report.table(header, cells), path, of_folder=True)}"


def hosts_part():
    """Return the table of exchanges on several hosts, with one level and with the default plan."""
    path = newest("hosts")
    rows = report.tables(path.read_text())
    header = [name for name in rows[0] if name not in ("[8], estimate", "default, estimate")]
    cells = [[row[name].partition(" (")[0] for name in header] for row in rows]
    return from_report(report.table(header, cells), path, of_folder=True)


def overlap_part():
    """Return the newest table of the hidden share of an exchange, without the spread."""
    path = newest("overlap")
    rows = report.tables(path.read_text())
    cells = [[cell.partition(" (")[0] for cell in row.values()] for row in rows]
    return from_report(report.table(list(rows[0]), cells), path, of_folder=True)


def uneven_hosts_part():
    """Return the table of uneven hosts, and what `StragglerReport` prints."""
    path = newest("uneven_hosts")
    text = path.read_text()
    rows = [[cell.partition(" (")[0] for cell in row.values()] for row in report.tables(text)]
    table = report.table(list(report.tables(text)[0]), rows)
    printed = text.split("\n## ")[1].partition("\n")[2].strip()
    return from_report(
        f"{table}\n\nAt the end of training, the callback prints:\n\n{printed}",
        path,
        of_folder=True,
    )


def simulated_clusters_part():
    """Return the tables of simulated exchanges of 100 MB, one row for each cluster and N."""
    path, cells = newest("simulate_clusters"), []
    for section in path.read_text().split("\n## ")[1:]:
        rows = report.tables(section)
        cells += [
            [section.partition("\n")[0], *(row[name] for name in row if name != "MB")]
            for row in rows
            if row["MB"] == "100"
        ]
    header = ["cluster", *(name for name in rows[0] if name != "MB")]
    return from_report(report.table(header, cells), path, of_folder=True)


def slow_accuracy_part():
    """Return the table of times to an accuracy over slow links."""
    path = newest("slow_accuracy")
    rows = report.tables(path.read_text())
    cells = [[cell.partition(" (")[0] for cell in row.values()] for row in rows]
    return from_report(report.table(list(rows[0]), cells), path, of_folder=True)


def start_time_part():
    """Return the table of seconds in which workers find each other."""
    path = newest("start_time")
    rows = report.tables(path.read_text())
    cells = [[cell.partition(" (")[0] for cell in row.values()] for row in rows]
    header = ["workers", "with all addresses (`TF_CONFIG`), s", "with worker 0's address, s"]
    return from_report(report.table(header, cells), path)


def elastic_part():
    """Return the table of events after which training continues on other hosts."""
    path, events = newest("elastic"), newest("elastic_events")
    rows = report.tables(path.read_text())
    text = (
        "The table shows the seconds from an event to the next training step, and the seconds "
        "without training (pause), as medians (lowest to highest) of "
        f"{min(int(r['times']) for r in rows)} or more measurements. Four hosts are simulated on "
        "one machine with two cores, and used `--preload`, an option that was removed since:"
    )
    table = report.table(
        ["event", "next step", "pause"], [[r["event"], r["seconds"], r["pause"]] for r in rows]
    )
    links = f"[report](../../benchmarks/results/{path.name})"
    random = f"[another report](../../benchmarks/results/{events.name})"
    found = events.read_text()
    count, minutes = re.search(r"(\d+) random events in (\d+) minutes", found).groups()
    epochs = re.search(r"steps of (\d+) epochs", found)[1]
    of_epochs = re.findall(r"(\d+) rows not used, (\d+) used again", found)
    not_used, again = (sorted(map(int, column)) for column in zip(*of_epochs, strict=True))
    return (
        f"{text}\n\n{table}\n\nFrom the {links}. In {random}, {count} such events happen at random "
        f"in {minutes} minutes, also during restarts: {sum(not_used)} rows are left out, and in "
        f"{len(again)} of {epochs} epochs {again[0]} to {again[-1]} rows are used again."
    )


def elastic_others_part():
    """Return the table of the same events with other frameworks."""
    path = newest("elastic_others")
    own_path = path.with_name(path.name.replace("elastic_others", "elastic"))  # of the same day
    own = {row["event"]: row["seconds"] for row in report.tables(own_path.read_text())}
    own["all processes of a host are killed"] = own["a host's launcher is killed"]
    rows = [row for row in report.tables(path.read_text()) if "not measured" not in row.values()]
    cells = [[row["event"], own[row["event"]], *[*row.values()][1:]] for row in rows]
    table = report.table(["event", "tf_adasum", *[*rows[0]][1:]], cells)
    links = [f"[{each}](../../benchmarks/results/{each})" for each in (own_path.name, path.name)]
    return f"{table}\n\nFrom the reports {' and '.join(links)}."


def small_steps_part():
    """Return the table of steps with workers bound to cores and not."""
    path = newest("small_steps")
    found = {
        (row["workers"], row["framework"], row["bound to"]): row["small, ms"].partition(" ")[0]
        for row in report.tables(path.read_text())
    }
    rows = [
        [workers, framework, found[workers, framework, "cores"], milliseconds]
        for (workers, framework, bound_to), milliseconds in found.items()
        if bound_to == "none"
    ]
    header = ["workers", "step of a small CNN", "own cores, ms", "all cores, ms"]
    return from_report(report.table(header, rows), path)


def frameworks_part():
    """Return README's table: a column for each framework."""
    steps, kills = newest("frameworks"), newest("frameworks_kill")
    measured = report.tables(steps.read_text())
    killed = report.tables(kills.read_text())

    def median(name, unit):
        values = [float(row[name].partition(" ")[0]) for row in measured]
        return [f"{value:,.{int(value < 100)}f} {unit}" for value in values]

    def linked(text, path):
        return f"[{text}](benchmarks/results/{path.name})"

    rows = [
        ["`fit` with Keras 3", "fails (1)", "Keras 2 only", "works", "works"],
        [linked("step, 25 million parameters", steps), *median("large, ms", "ms")],
        [linked("step, small CNN", steps), *median("small, ms", "ms")],
        [linked("peak memory of a worker, 25 million", steps), *median("large, MiB", "MiB")],
        [
            linked("a worker is killed: time until the other ends", kills),
            *(row["seconds"] + " s" for row in killed),
        ],
        [linked("errors that name the killed worker", kills), *(row["named"] for row in killed)],
    ]
    return report.table(["", *FRAMEWORKS], rows)


def rewritten(document, generated):
    """Return the document with the generated parts between their markers.

    Raises:
        ValueError: if the markers of a part do not occur exactly once; the message names the part.
    """
    for name, text in generated.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        pattern = f"({re.escape(begin)}).*?({re.escape(end)})"
        document, count = re.subn(
            pattern,
            lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}",
            document,
            flags=re.S,
        )
        if count != 1:
            raise ValueError(f"Expected {begin} … {end} once in the document. Received: {count}")
    return document


def main():
    """Rewrite the parts in the documents, and print them."""
    for name, generated in parts().items():
        document = DOCUMENTS / name
        document.write_text(rewritten(document.read_text(), generated))
        print("\n\n".join(generated.values()))
