"""The examples in the docstrings run, and print what stands there.

An example may use `tf`, `np`, `keras`, `tf_adasum`, the names of its own module, and what `names`
below adds: a strategy of one replica, a compiled model, and data to train it with. One that needs
workers, or takes long, ends with ``# the reason  # doctest: +SKIP``.
"""

import ast
import doctest
import importlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_adasum

ROOT = Path(__file__).parents[2]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d*(?:e[+-]?\d+)?")
OBJECT = re.compile(r"<[\w.]+ object at 0x\w+>\n")
SKIPPED = re.compile(r"#\s*(?P<reason>[^#]*?)\s*# doctest: \+SKIP")


def documented(node, name):
    """Yield `(name, docstring)` of a module, class or function, and of everything in it."""
    docstring = ast.get_docstring(node)
    if docstring and ">>>" in docstring:
        yield name, docstring
    for child in node.body:
        if isinstance(child, DOCUMENTED):
            yield from documented(child, f"{name}.{child.name}")


def examples():
    """Yield `(module, docstring)` for each docstring of the package that has an example."""
    for path in sorted((ROOT / "tf_adasum").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name, docstring in documented(ast.parse(path.read_text()), module):
            yield pytest.param(module, docstring, id=name)


class Checker(doctest.OutputChecker):
    """Allows for rounding in the sixth digit, and for objects that nobody wants to see."""

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags):
            return True
        if not want:  # `model.fit(...)` returns a History
            return bool(OBJECT.fullmatch(got))
        wanted, found = ([float(text) for text in NUMBER.findall(each)] for each in (want, got))
        return (
            len(wanted) == len(found)
            and np.allclose(wanted, found, rtol=1e-5, atol=1e-6)
            and super().check_output(NUMBER.sub("0.0", want), NUMBER.sub("0.0", got), optionflags)
        )


@pytest.fixture
def names(monkeypatch, tmp_path):
    """What the examples find there, in an empty folder and on one device."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    keras.utils.set_random_seed(0)
    keras.utils.disable_interactive_logging()  # no progress bars among the output
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
    y = x.sum(axis=1, keepdims=True)
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    yield {
        "tf": tf,
        "np": np,
        "keras": keras,
        "tf_adasum": tf_adasum,
        "x": x,
        "y": y,
        "dataset": tf.data.Dataset.from_tensor_slices((x, y)).batch(8),
        "strategy": strategy,
        "model": model,
        "loss": "mse",
    }
    keras.utils.enable_interactive_logging()


@pytest.mark.keras3_only("the examples are written for Keras 3")
@pytest.mark.parametrize(("module", "docstring"), list(examples()))
def test_the_example_prints_what_stands_there(module, docstring, names, request):
    own = vars(importlib.import_module(module))
    name = request.node.callspec.id
    test = doctest.DocTestParser().get_doctest(docstring, {**own, **names}, name, None, None)
    for line in docstring.splitlines():
        if "+SKIP" in line:
            assert SKIPPED.search(line) and SKIPPED.search(line)["reason"], line
    if all(doctest.SKIP in example.options for example in test.examples):
        pytest.skip(SKIPPED.search(test.examples[0].source)["reason"])
    said = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(Checker(), verbose=False, optionflags=flags).run(test, out=said.append)
    assert not said, "".join(said)
