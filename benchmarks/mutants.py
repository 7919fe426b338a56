"""Mutation testing: do the tests of `make test` detect a small change of the package's code?

    python benchmarks/mutants.py                      every target: DATE-mutants.md
    python benchmarks/mutants.py aggregation launch   some of them, into build/mutants.jsonl only
    python benchmarks/mutants.py --share 3            every third mutant
    python benchmarks/mutants.py --report             the report from what build/mutants.jsonl has

Each mutant is the package with one operator, number, condition or constant of one file changed, as
Cosmic Ray (PyPI `cosmic-ray`) changes them. It runs in a fork of a process that has imported
TensorFlow; nothing is written to the sources. First the tests of a target run once and record
which test executes which line. For each mutant, only the tests that execute its line are run. Tests
that execute few lines run first, until one fails or SECONDS of tests have passed. All results are
kept in build/mutants.jsonl, even if a run is interrupted. A mutant with a result is not run again,
unless the line's file or the tests have changed.

A mutant counts as killed if a test fails, if the package cannot be imported, or if the tests take
more than ten times as long. Worker processes that a test starts run the package without the change.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import json
import linecache
import math
import os
import pathlib
import signal
import sys
import time
import zlib

import report
from seeded_bugs import BUGS

ROOT = report.ROOT
RECORD = ROOT / "build" / "mutants.jsonl"
SECONDS = 20  # of tests per mutant

# Not addons_lamb.py, which runs under Keras 2 only.
OPTIMIZERS = "adascale adascale_step delta_adasum gain lamb lamb_arguments wrapper".split()

# For each target: the sources that are changed, and the tests that must detect the changes.
TARGETS = {
    "aggregation": (["tf_adasum/aggregation"], ["aggregation", "transport/test_fused.py"]),
    "ops": (["tf_adasum/ops/reference.py"], ["ops/test_ops.py", "ops/test_kernels.py"]),
    "optimizers": ([f"tf_adasum/optimizers/{name}.py" for name in OPTIMIZERS], ["optimizers"]),
    "health": (["tf_adasum/health/diagnosis.py"], ["health/test_diagnosis.py"]),
    "cluster": (
        ["tf_adasum/cluster/detection.py"],
        ["cluster/test_detection.py", "cluster/test_json_lines.py"],
    ),
    "launch": (["tf_adasum/launch/failures.py"], ["launch/test_failures.py"]),
    "workers": (
        ["tf_adasum/workers/sharding.py", "tf_adasum/workers/row_samples.py"],
        ["workers/test_sharding.py", "workers/test_row_samples.py", "compat/test_pipelines.py"],
    ),
    "backup": ([], ["backup/test_backup_files.py"]),  # only for BUGS
}

BINARY = (
    "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul BitOr_BitAnd BitAnd_BitOr "
    "LShift_RShift RShift_LShift"
)
COMPARISONS = (
    "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Is_IsNot IsNot_Is"
)
OPERATORS = [
    *(f"core/ReplaceBinaryOperator_{change}" for change in BINARY.split()),
    *(f"core/ReplaceComparisonOperator_{change}" for change in COMPARISONS.split()),
    "core/ReplaceUnaryOperator_USub_UAdd",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/AddNot",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ExceptionReplacer",
    "core/NumberReplacer",
    "core/ZeroIterationForLoop",
]

OPERATOR_NAMES = {name.partition("/")[2] for name in OPERATORS}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all of them")
    parser.add_argument("--report", action="store_true", help="only write the report")
    parser.add_argument("--before", type=pathlib.Path, help="a record to compare with")
    parser.add_argument("--share", type=int, default=1, help="run every SHAREth mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    arguments = parser.parse_args()
    targets = arguments.targets or list(TARGETS)
    os.chdir(ROOT)
    RECORD.parent.mkdir(exist_ok=True)
    if not arguments.report:
        prepare()
        for target in targets:
            run_target(target, arguments.share, arguments.jobs)
    if arguments.report or not arguments.targets:
        write_report(arguments.before)


def prepare():
    """Import what every fork needs, except tf_adasum, which each fork imports with its change."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for module in ("tensorflow", "keras", "pytest", "hypothesis", "sklearn"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


# --------------------------------------------------------------------------- mutants of a file


def mutants_of(path):
    """Yield (line, operator, occurrence, changed source) for each mutant of a file.

    Changes of annotations are left out, because the compiled code does not contain them.
    """
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = path.read_text()
    unchanged = without_annotations(source)
    for name in OPERATORS:
        operator = get_operator(name)()
        positions = [
            position
            for node in ast_nodes(get_ast(source))
            for position in operator.mutation_positions(node)
        ]
        # NumberReplacer changes each number twice: plus one, and minus one. The first is enough.
        step = 2 if name == "core/NumberReplacer" else 1
        for occurrence in range(0, len(positions), step):
            changed = mutate_code(source, operator, occurrence)
            with contextlib.suppress(SyntaxError):  # `not` before an assignment expression
                if without_annotations(changed) == unchanged:
                    continue
                if weakens_a_check(difference(source, changed)):
                    continue
                yield positions[occurrence][0][0], name.partition("/")[2], occurrence, changed


def weakens_a_check(change):
    """Return whether a change makes `zip` or a dataclass less strict.

    Such a change has no effect in a correct program.
    """
    before, _, after = change.partition(" → ")
    return any(before.count(own) > after.count(own) for own in ("strict=True", "frozen=True"))


def without_annotations(source):
    """Return the syntax tree of a source, without annotations, as a text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
    return ast.dump(tree)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class ChangedModule:
    """A finder and loader that replaces the source of one module.

    It also puts the source into `linecache`, from which AutoGraph reads the source of functions.
    """

    def __init__(self, path, source):
        self.path, self.name = path, module_name(path)
        self.code = compile(source, str(path), "exec")
        linecache.cache[str(path)] = (len(source), None, source.splitlines(True), str(path))

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        package = [str(self.path.parent)] if self.path.stem == "__init__" else None
        return importlib.util.spec_from_file_location(
            name, self.path, loader=self, submodule_search_locations=package
        )

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(self.code, module.__dict__)


# --------------------------------------------------------------------------- forks


def in_fork(function, log):
    """Call a function in a fork that leads a process group; return its process id."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.setpgid(0, 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = int(function())
    finally:
        os._exit(code)


def pytest_main(arguments, plugins=()):
    import hypothesis
    import pytest

    # Use the same examples for each mutant, and do not search for a smaller one after a failure.
    hypothesis.settings.register_profile(
        "mutants",
        database=None,
        derandomize=True,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    hypothesis.settings.load_profile("mutants")
    return pytest.main(
        ["-q", "-p", "no:cacheprovider", "--tb=line", *arguments], plugins=list(plugins)
    )


class LineRecorder:
    """A pytest plugin that records which test executes which line, and the seconds of each test."""

    def __init__(self, coverage):
        self.coverage, self.seconds, self.failed = coverage, {}, set()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def record_lines(tests, files, out):
    """Run tests; write the lines of `files` that each test executes, and its seconds, as JSON."""
    import coverage

    measured = coverage.Coverage(data_file=None, source=["tf_adasum"], config_file=False)
    recorder = LineRecorder(measured)
    measured.start()
    code = pytest_main(["--sample", *tests], [recorder])
    measured.stop()
    data = measured.get_data()
    lines = {
        str(file): {
            line: sorted(c for c in contexts if c)
            for line, contexts in data.contexts_by_lineno(str(file)).items()
        }
        for file in files
    }
    out.write_text(
        json.dumps({"lines": lines, "seconds": recorder.seconds, "failed": sorted(recorder.failed)})
    )
    return code


# --------------------------------------------------------------------------- a target


def run_target(target, share, jobs):
    """Run the mutants of a target, and its BUGS, that have no result yet."""
    sources, tests = TARGETS[target]
    files = [file for source in sources for file in files_of(ROOT / source)]
    bugs = [bug for bug in BUGS if bug[1] == target]
    out, log = (RECORD.parent / f"mutants-{target}.{kind}" for kind in ("json", "log"))
    measured = sorted({*files, *(ROOT / bug[2] for bug in bugs)})
    tests = [f"tests/unit/{test}" for test in tests]
    os.waitpid(in_fork(lambda: record_lines(tests, measured, out), log), 0)
    recorded = json.loads(out.read_text())
    if recorded["failed"]:
        raise SystemExit(f"These tests fail without a change: {recorded['failed']}. See {log}.")
    known = {entry["key"] for entry in entries()}
    waiting = []
    for name, file, line, changed in [*bugs_of(bugs), *chosen_mutants(files, share)]:
        executed = {int(own): names for own, names in recorded["lines"][str(file)].items()}
        limit = SECONDS if name in OPERATOR_NAMES else math.inf
        nodes = tests_of(line, executed, recorded["seconds"], limit)
        entry = {
            "key": key_of(changed, nodes),
            "target": target,
            "file": str(file.relative_to(ROOT)),
            "line": line,
            "name": name,
            "change": difference(file.read_text(), changed),
            "tests": len(nodes),
        }
        if entry["key"] not in known:
            seconds = sum(recorded["seconds"][node] for node in nodes)
            waiting.append((entry, file, changed, nodes, seconds))
    count = len(recorded["seconds"])
    print(f"{target}: {count} tests, {len(waiting)} mutants to run", flush=True)
    run_all(waiting, jobs)


def bugs_of(bugs):
    """Yield (name, file, line, changed source) for some of BUGS."""
    for name, _, file, old, new in bugs:
        source = (ROOT / file).read_text()
        if source.count(old) != 1:
            raise SystemExit(f"{file} has {source.count(old)} times: {old}")
        line = source[: source.index(old)].count("\n") + 1
        yield name, ROOT / file, line, source.replace(old, new)


def chosen_mutants(files, share):
    """Yield (operator, file, line, changed source) for every SHAREth mutant, always the same."""
    for file in files:
        for line, operator, occurrence, changed in mutants_of(file):
            if zlib.crc32(f"{module_name(file)} {operator} {occurrence}".encode()) % share == 0:
                yield operator, file, line, changed


def files_of(path):
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def tests_of(line, executed, seconds, limit):
    """Return the tests that execute a line, or all tests if the line runs at import."""
    breadth = {}
    for names in executed.values():
        for name in names:
            breadth[name] = breadth.get(name, 0) + 1
    named = executed.get(line) or seconds
    nodes = sorted(named, key=lambda name: (breadth.get(name, 0), name))
    total, chosen = 0.0, []
    for node in nodes:
        total += seconds[node]
        if chosen and total > limit:
            break
        chosen.append(node)
    return chosen


def key_of(changed, nodes):
    """Return a digest of what a result depends on: the changed source and the tests' files."""
    digest = hashlib.sha256(changed.encode())
    for file in sorted({node.partition("::")[0] for node in nodes}):
        digest.update(pathlib.Path(file).read_bytes())
    digest.update("\n".join(nodes).encode())
    return digest.hexdigest()[:16]


def difference(before, after):
    """Return "old line → new line" for the first line that differs."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    old, new = next((old, new) for old, new in pairs if old != new)
    return f"{old.strip()} → {new.strip()}"


def run_all(waiting, jobs):
    """Run mutants, `jobs` at a time, and append each result to the record."""
    running = {}
    queue = list(reversed(waiting))
    with RECORD.open("a") as record:
        while queue or running:
            while queue and len(running) < jobs:
                entry, file, changed, nodes, expected = queue.pop()
                log = RECORD.parent / f"mutant-{len(queue)}.log"
                process = in_fork(lambda f=file, c=changed, n=nodes: test_mutant(f, c, n), log)
                deadline = time.monotonic() + 30 + 10 * expected
                running[process] = (entry, log, deadline, time.monotonic())
            for process, (entry, log, deadline, started) in list(running.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() < deadline:
                    continue
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process, signal.SIGKILL)
                if not ended:
                    os.waitpid(process, 0)
                    entry["outcome"] = "timeout"
                else:
                    entry["outcome"] = "survived" if status == 0 else "killed"
                    entry["by"] = killer(log)
                entry["seconds"] = round(time.monotonic() - started, 2)
                record.write(json.dumps(entry) + "\n")
                record.flush()
                log.unlink()
                del running[process]
            time.sleep(0.01)


def test_mutant(file, changed, nodes):
    if not nodes:
        return 0
    sys.meta_path.insert(0, ChangedModule(file, changed))
    return pytest_main(["-x", *nodes])


def killer(log):
    """Return the first line of pytest's summary that names a failed test."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "")[:200]


# --------------------------------------------------------------------------- report


def entries():
    with contextlib.suppress(FileNotFoundError):
        yield from map(json.loads, RECORD.read_text().splitlines())


def write_report(before):
    """Write DATE-mutants.md from the record; `before` is the record of another commit, or None."""
    latest = {(entry["file"], entry["name"], entry["change"]): entry for entry in entries()}
    mutants = [
        entry
        for entry in latest.values()
        if entry["name"] in OPERATOR_NAMES and not weakens_a_check(entry["change"])
    ]
    bugs = [entry for entry in latest.values() if entry["name"] not in OPERATOR_NAMES]
    earlier = [json.loads(line) for line in before.read_text().splitlines()] if before else []
    rows = []
    for target in [*TARGETS, None]:
        own, old = (
            [e for e in found if target in (None, e["target"]) and e["name"] in OPERATOR_NAMES]
            for found in (mutants, earlier)
        )
        if own:
            rows.append(
                [target or "all", len(own), *(kinds(own)), share_killed(old), share_killed(own)]
            )
    header = ["target", "mutants", "killed", "timeouts", "survived", "killed before", "killed"]
    caught = [
        [bug["name"], "no" if bug["outcome"] == "survived" else "yes", test_of(bug)] for bug in bugs
    ]
    survivors = [
        [
            f"{e['file'].removeprefix('tf_adasum/')}:{e['line']}",
            f"`{e['change']}`".replace("|", "\\|"),
            e["tests"],
        ]
        for e in mutants
        if e["outcome"] == "survived"
    ]
    body = [
        f"A mutant meets the unit tests that execute its line, for at most {SECONDS} seconds. So a "
        "test with worker processes, which takes no part, or a later test may still notice a "
        "mutant that survives here.",
        report.table(header, rows),
        "## Bugs put in by hand",
        report.table(["bug", "caught", "first test that fails"], caught),
        "## Mutants that survive",
        report.table(["line", "change", "tests"], survivors),
    ]
    report.write("mutants", "Mutation testing", "\n\n".join(body))


def kinds(found):
    """Return how many mutants were killed, timed out and survived."""
    return [sum(e["outcome"] == kind for e in found) for kind in ("killed", "timeout", "survived")]


def share_killed(found):
    """Return "93 %", or a dash."""
    survived = sum(entry["outcome"] == "survived" for entry in found)
    return f"{100 * (1 - survived / len(found)):.0f} %" if found else "–"


def test_of(entry):
    """Return the test that failed first, without its folder."""
    named = entry.get("by", "").removeprefix("FAILED ").removeprefix("ERROR ")
    return named.partition(" - ")[0].rpartition("/")[2]


if __name__ == "__main__":
    main()
