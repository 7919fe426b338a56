"""The code in the documents runs: fragments, whole programs, tutorials."""

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.launching import output_of
from support.pace import PACE

import tf_adasum
from tf_adasum import doctor
from tf_adasum.launch import command_line

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python(?: title=\"([^\"\n]*)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Pages whose blocks run one after the other, as a notebook.
IN_ORDER = [path for path in DOCUMENTS if "<!-- output -->" in path.read_text()]
LIMIT = 150 * PACE
PATTERN = re.compile(r"\d+(?:\\?\.\d+)?")  # a number, as re.escape writes it


def blocks(path):
    """The pairs of title and text of a document's blocks of Python."""
    return [match.groups() for match in BLOCK.finditer(path.read_text())]


def programs():
    """Whole programs: blocks of the pages with a title, but for those before a migration."""
    for path in DOCUMENTS[1:]:  # the README's is tested below
        for title, text in blocks(path):
            if title and not title.startswith("before"):
                yield pytest.param(text, id=path.stem)


def environment(folder):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    without = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return without | {"PYTHONPATH": path, "HOME": str(folder)}


def launched(folder, *arguments):
    """Return what the launcher prints that is run in a folder."""
    command = [sys.executable, "-m", "tf_adasum.launch", *arguments]
    return output_of(*command, cwd=folder, env=environment(folder), timeout=LIMIT)


@pytest.mark.parametrize("text", list(programs()))
@pytest.mark.slow
@pytest.mark.keras3_only("the documents are written for Keras 3")
def test_a_whole_program_trains_on_two_workers(text, tmp_path):
    end = "" if "\nlosses = []" in text else "\nlosses = model.history.history['loss']"
    end += "\nassert strategy.num_workers == 2 and losses[-1] < losses[0], losses\n"
    end += "print('trained')\n"
    (tmp_path / "train.py").write_text(text + end)
    assert launched(tmp_path, "-n", "2", "train.py").count("trained") == 2


README = (ROOT / "README.md").read_text()


def readme_blocks(language):
    """The blocks of the README in a language, as they stand."""
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.keras3_only("the README is written for Keras 3")
def test_the_quickstart_of_the_readme_runs_as_printed(tmp_path):
    (tmp_path / "train.py").write_text(readme_blocks("python")[0])
    output = launched(tmp_path, *shlex.split(readme_blocks("sh")[1])[1:])
    for line in readme_blocks("text")[0].replace("…", "").split("\n"):
        assert re.search(PATTERN.sub(r"[\\d.]+", re.escape(line)), output), line
    shown, reached = (
        [float(each) for each in re.findall(r"accuracy: ([\d.]+)", text)]
        for text in (readme_blocks("text")[0], output)
    )
    assert len(reached) == 4 and reached[-1] > 0.8 and abs(reached[-1] - shown[-1]) < 0.05


@pytest.mark.slow
@pytest.mark.version_independent
def test_the_install_block_works_in_a_fresh_clone(tmp_path):
    """It builds the compiled op, with UCX."""
    block = SHELL.search((ROOT / "docs" / "install.md").read_text())[1]
    run = functools.partial(subprocess.run, check=True, text=True, timeout=900 * PACE)
    run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")])
    script = f"set -e\n{block}tf-adasum-doctor > doctor.txt\n"
    without = {"PYTHONPATH", "VIRTUAL_ENV", "TF_ADASUM_OPS", "TF_ADASUM_UCX", "TF_CONFIG"}
    outside = {name: value for name, value in os.environ.items() if name not in without}
    run(["bash", "-c", script], cwd=tmp_path / "clone", env=outside)
    report = (tmp_path / "clone" / "doctor.txt").read_text()
    assert "ok    compiled op " in report and "ok    UCX " in report, report


# Blocks that do not run on one replica, and why; their first lines.
NOT_RUN = {
    "tuner = keras_tuner.RandomSearch(": "it needs KerasTuner",
    "def train(epochs):": "it leaves the model out",
}
# Pages whose blocks are no whole programs: they run one after the other, on one replica.
FRAGMENTS = [
    path for path in DOCUMENTS[1:] if path.parent == ROOT / "docs" and path not in IN_ORDER
]


@pytest.fixture
def names(monkeypatch, tmp_path):
    """What a fragment finds there: that of pages' own earlier lines, and a small model and data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    keras.utils.disable_interactive_logging()
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
    y = (x.sum(axis=1, keepdims=True) > 0).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    with tf.io.TFRecordWriter("train-0.tfrecord") as file:
        file.write(b"a record")
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])

    def build_model():
        return keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])

    with strategy.scope():
        model = build_model()
        model.compile(optimizer="sgd", loss="mse")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
    yield {
        **{"keras": keras, "np": np, "tf": tf, "tf_adasum": tf_adasum},
        **{"x": x, "y": y, "dataset": dataset.batch(8), "all_samples": dataset},
        **{"strategy": strategy, "model": model, "optimizer": optimizer},
        **{"build_model": build_model, "parse": lambda record: record, "global_batch_size": 8},
    }
    keras.mixed_precision.set_global_policy("float32")
    keras.utils.enable_interactive_logging()


@pytest.mark.keras3_only("the documents are written for Keras 3")
@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.stem)
def test_the_fragments_of_a_page_run(path, names):
    for title, text in blocks(path):
        first = text.splitlines()[0]
        if not title and first not in NOT_RUN:  # what has a title is a whole program
            exec(compile(text, f"{path.name}: {first}", "exec"), names)


SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PARSERS = {
    "tf-adasum-launch": command_line.build_parser,
    "python -m tf_adasum.launch": command_line.build_parser,
    "tf-adasum-doctor": doctor.build_parser,
    "python -m tf_adasum.doctor": doctor.build_parser,
}


def commands():
    """The commands of this package in the documents, each with its page and its parser."""
    for path in DOCUMENTS:
        for text in SHELL.findall(path.read_text()):
            for line in text.replace("\\\n", " ").splitlines():
                for command in re.split(r" && ", re.split(r"(?:^|\s)#", line)[0].strip()):
                    words = re.sub(r"^(?:[A-Z_]+=(?:'[^']*'|\S+) +)+", "", command.strip())
                    words = words.removeprefix(".venv/bin/")
                    for begin in filter(words.startswith, PARSERS):
                        arguments = shlex.split(words.removeprefix(begin))
                        yield pytest.param(begin, arguments, id=f"{path.stem}: {command}"[:70])


@pytest.mark.version_independent
@pytest.mark.parametrize(("program", "arguments"), list(commands()))
def test_commands_are_understood(program, arguments):
    assert is_understood(PARSERS[program](), arguments)


def is_understood(parser, arguments):
    try:
        program = getattr(parser.parse_args(arguments), "command", ["program"])
    except SystemExit as ended:  # of --version: 0
        return ended.code == 0
    return program and program[0][0] != "-"  # an option that nobody knows begins the program


@pytest.mark.version_independent
@pytest.mark.parametrize("parser", [command_line.build_parser, doctor.build_parser])
def test_the_page_of_commands_has_every_option(parser):
    page = (ROOT / "docs" / "commands.md").read_text()
    shown = [action for action in parser()._actions if action.help not in (None, "==SUPPRESS==")]
    options = {option for action in shown for option in action.option_strings}
    assert {option for option in options if f"{option}" not in page} == {"-h", "--help"}


# What pages that run in order say of their numbers.
CLAIMS = {
    "first_training": "one[best] > 0.9 and one[best] >= adasum > max(mean.values())",
    "choosing": "1 / 4 < orthogonality(64) < orthogonality(4) <= 1",
    "adascale": "100 <= taken < 400 and accuracy > 0.95"
    " and all(1 <= gain <= 4 for gain in history.history['gain'])",
    "custom_loops": "len(losses) == 5 and losses[-1] < losses[0] / 4",
}


@pytest.mark.slow
@pytest.mark.keras3_only("the documents are written for Keras 3")
@pytest.mark.parametrize("path", IN_ORDER, ids=lambda path: path.stem)
def test_a_page_runs_in_order_and_does_what_it_says(path, tmp_path, monkeypatch):
    needed = ("sklearn", "matplotlib", "cloudpickle", "nbclient", "ipykernel")
    for package in needed:
        pytest.importorskip(package, reason=f"{package} is not installed")
    import outputs

    for name, value in (environment(tmp_path) | {"MPLBACKEND": "Agg"}).items():
        monkeypatch.setenv(name, value)
    outputs.executed(path.read_text(), tmp_path, more=[f"assert {CLAIMS[path.stem]}"])
