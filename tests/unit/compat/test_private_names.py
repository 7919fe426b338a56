"""The private names of TensorFlow and Keras 3 that tf_adasum uses, except those that it replaces.

If a new version has moved something, the failing test's name shows the file that uses it.
`test_installed_hooks.py` has the hooks.
"""

import ast
import functools
import hashlib
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("keras", minversion="3")  # private names of Keras 3

import keras
import tensorflow as tf

import tf_adasum
from tf_adasum._version import major_minor
from tf_adasum.compat.keras import private_names_keras3

PACKAGE = Path(tf_adasum.__file__).parent
# What is imported from `private_names*.py` is an error if it has moved.
FILES = [
    path
    for path in sorted((PACKAGE / "compat").rglob("*.py"))
    if "private_names" not in path.name and path.parent.name != "keras2"
]
SOURCES = [Path(keras.__file__).parent / "src"]
SOURCES += [
    Path(tf.__file__).parent / "python" / name
    for name in ("checkpoint", "data", "distribute", "eager", "framework", "trackable")
]

# What is used only if Keras has it: its first version. Others are of Python or Keras 2, or the end
# of a name.
SINCE = {"_autoconvert_optionals": "3.12", "_epoch": "3.16"}
OTHERS = {"_batch_end", "_getframe", "_function", "_trainable_weights", "_non_trainable_weights"}

# Digests of the sources of Keras's steps, of which `jit.py` has a version in two parts. Those of
# Keras 3.11 take the first input for the number of rows, and the others the first that there is.
KERAS_STEPS = {"train_step": "debf0efab9d5794b", "test_step": "a8f04a25512e74e2"}
KERAS_STEPS_OF_3_11 = {"train_step": "38eff65a3e8e6447", "test_step": "4af0440af44a0942"}


def is_private(name):
    return re.fullmatch(r"_[A-Za-z]\w*", str(name)) is not None


def private_names(path):
    """Return the private attributes that a file uses, and those that it defines."""
    used, own = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
            (own if is_own else used).add(node.attr)
        elif isinstance(node, ast.Constant):
            used.add(node.value)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
    return set(filter(is_private, used)), set(filter(is_private, own))


@functools.cache
def names_in_sources():
    """Return the private names in the sources of Keras and TensorFlow, and our own."""
    texts = (path.read_text() for folder in SOURCES for path in folder.rglob("*.py"))
    found = {name for text in texts for name in re.findall(r"\b_\w+", text)}
    return found.union(*(private_names(path)[1] for path in PACKAGE.rglob("*.py")))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE / "compat")))
def test_every_private_name_of_a_file_is_there(path):
    version = major_minor(keras.__version__)
    later = {name for name, first in SINCE.items() if version < major_minor(first)}
    used, _ = private_names(path)
    assert used - names_in_sources() - OTHERS <= later


def test_keras_steps_are_those_that_are_compiled_in_parts():
    """What `jit.py` says in its own words: `TensorFlowTrainer.train_step` and `.test_step`."""
    trainer = private_names_keras3.TensorFlowTrainer
    digests = {
        step.__name__: hashlib.sha256(inspect.getsource(step).encode()).hexdigest()[:16]
        for step in (trainer.train_step, trainer.test_step)
    }
    expected = KERAS_STEPS_OF_3_11 if keras.__version__.startswith("3.11.") else KERAS_STEPS
    assert digests == expected, "Keras's steps have changed: compare them with keras3/jit.py"
