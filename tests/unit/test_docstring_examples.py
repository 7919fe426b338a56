"""The examples in the docstrings run, and print what stands there.

An example may use `tf`, `np`, `keras`, `tf_adasum`, the names of its own module, and what `names`
below adds: a strategy of one replica, a compiled model, and data to train it with. One that needs
workers, or takes long, ends with ``# the reason  # doctest: +SKIP``.
"""

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
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d*(?:e[+-]?\d+)?")
OBJECT = re.compile(r"<[\w.]+ object at 0x\w+>\n")
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "tf_adasum").rglob("*.py"))
    if ">>>" in path.read_text()
]


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


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    keras.utils.disable_interactive_logging()  # no progress bars among the output
    yield
    keras.utils.enable_interactive_logging()


def names():
    """What the examples find there, on one device."""
    keras.utils.set_random_seed(0)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
    y = x.sum(axis=1, keepdims=True)
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    return {
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


@pytest.mark.keras3_only("the examples are written for Keras 3")
@pytest.mark.parametrize("module", MODULES)
def test_the_examples_print_what_stands_there(module):
    flags, said = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, []
    for test in doctest.DocTestFinder().find(importlib.import_module(module), module):
        if test.examples:
            test.globs |= names()
            runner = doctest.DocTestRunner(Checker(), verbose=False, optionflags=flags)
            runner.run(test, out=said.append)
    assert not said, "".join(said)
