"""Write the tables of pages from the newest reports. Nothing is measured here."""

import re

import report

RESULTS = "../benchmarks/results"  # as a page in docs/ sees them
ROUNDING = "## Rounding on the wire"  # in the report of benchmarks/exchange.py


def newest(name):
    """Return the path of the newest report DATE-name.md."""
    reports = report.RESULTS.glob(f"????-??-??-{name}.md")
    return max(reports, key=lambda path: path.name)


def parts():
    """Return a dict from documents to dicts from the names of parts to their texts."""
    return {
        "docs/speed.md": {"small steps": small_steps_part(), "large steps": large_steps_part()},
        "docs/elastic.md": {"elastic": elastic_part()},
        "custom_ops/README.md": {"gpu kernels": gpu_kernels_part()},
        "benchmarks/many_hosts.md": {
            "benchmark hosts": shortened(newest("hosts")),
            "benchmark simulated clusters": simulated_clusters_part(),
        },
        "benchmarks/slow_links.md": {
            "slow links": slow_links_part(),
            "rounding on the wire": rounding_part(),
        },
        "experiments/local_steps/README.md": {
            "benchmark slow accuracy": shortened(newest("slow_accuracy"), f"../{RESULTS}")
        },
    }


def rounding_part():
    path = newest("exchange")
    found = path.read_text().partition(ROUNDING)[2].strip()
    if not found:
        raise ValueError(f"{path.name} has no “{ROUNDING}”; run benchmarks/exchange.py --rounding")
    return from_report(found, path)


def from_report(text, path, folder="results"):
    """Return the text and a link to its report, which is in a folder as a page sees it."""
    return f"{text}\n\nFrom the [report]({folder}/{path.name})."


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
        f"[{name}]({RESULTS}/{path.name})"
        for name, path in (("two rows", pairwise), ("R rows", rows))
    )
    return f"On an {gpu}, from the reports {links}:\n\n{report.table(header, table)}"


def shortened(path, folder="results"):
    """Return the table of a report with a link, without the spread, ratios, and the cost model."""
    rows = [row for row in report.tables(path.read_text()) if "cost model" not in str(row)]
    header = [name for name in rows[0] if not name.endswith(("/ mean", "estimate"))]
    cells = [[row[name].partition(" (")[0] for name in header] for row in rows]
    return from_report(report.table(header, cells), path, folder)


def slow_links_part():
    """Return the table of steps over slow links."""
    text = "Time of a step of `fit` on 4 workers, and MB that worker 0 sends in a step:"
    return f"{text}\n\n{shortened(newest('slow_links'))}"


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
    return from_report(report.table(header, cells), path)


def elastic_part():
    """Return the table of events after which training continues on other hosts."""
    path, events = newest("elastic"), newest("elastic_events")
    rows = report.tables(path.read_text())
    text = (
        "*Next step*: seconds from the event to the first training step on the new hosts. *Pause*: "
        "seconds from the last step of the earlier workers to this step. The pause is shorter "
        "if the earlier workers train on after the event, for example while a new host starts. "
        "Medians (lowest to highest) "
        f"of at least {min(int(r['times']) for r in rows)} events of each kind. Two hosts with two "
        "workers each were simulated on one machine with two cores. Each restart also imports "
        "TensorFlow, which took about 3 s there."
    )
    table = report.table(
        ["event", "next step", "pause"], [[r["event"], r["seconds"], r["pause"]] for r in rows]
    )
    links = f"[report]({RESULTS}/{path.name})"
    random = f"[another report]({RESULTS}/{events.name})"
    found = events.read_text()
    count, minutes = re.search(r"(\d+) random events in (\d+) minutes", found).groups()
    epochs = re.search(r"steps of (\d+) epochs", found)[1]
    of_epochs = re.findall(r"(\d+) rows not used, (\d+) used again", found)
    not_used = sum(int(each) for each, _ in of_epochs)
    return (
        f"{text}\n\n{table}\n\nFrom the {links}. In {random}, {count} such events happened at "
        f"random in {minutes} minutes, also during restarts. Samples left out: {not_used}. "
        f"Epochs in which samples were used again: {len(of_epochs)} of {epochs}."
    )


def small_steps_part():
    """Return the table of steps with workers bound to cores and not."""
    path = newest("small_steps")
    found = {
        (row["workers"], row["bound to"], row["framework"]): row
        for row in report.tables(path.read_text())
        if row["workers"] != "1"
    }
    frameworks = list(dict.fromkeys(framework for *_, framework in found))
    rows = [
        [
            workers,
            model.removesuffix(", ms"),
            "own cores" if bound == "cores" else "all cores",
            *(found[workers, bound, name][model].partition(" ")[0] for name in frameworks),
        ]
        for workers, bound in dict.fromkeys(key[:2] for key in found)
        for model in ("small, ms", "4 MB, ms")
    ]
    names = [name.replace("mean", "average") for name in frameworks]
    return from_report(report.table(["workers", "model", "on", *names], rows), path, RESULTS)


def large_steps_part():
    """Return the table of steps with 25 million parameters, of frameworks bound to cores alike."""
    path = newest("frameworks")
    rows = [
        [row["framework"].replace("mean", "average"), row["large, ms"], row["large, MiB"]]
        for row in report.tables(path.read_text())
        if row["framework"].startswith(("Horovod", "tf_adasum"))
    ]
    header = ["framework", "ms (quartiles)", "peak memory, MiB"]
    return from_report(report.table(header, rows), path, RESULTS)


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
        document = report.ROOT / name
        document.write_text(rewritten(document.read_text(), generated))
        print("\n\n".join(generated.values()))


if __name__ == "__main__":
    main()
