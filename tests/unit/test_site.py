"""The reference has every public name, and every code of a message has an answer."""

import inspect
import re
from pathlib import Path

import pytest

import tf_adasum

CODE = re.compile(r"TFA-\d{3}")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
MODULES = [
    "tf_adasum",
    *(f"tf_adasum.{n}" for n in "callbacks optimizers rules schedules ops".split()),
]


def public_names(name):
    """The classes and functions that a module offers, by asking the module itself."""
    module = getattr(tf_adasum, name.partition(".")[2], tf_adasum)
    own = [each for each, found in vars(module).items() if getattr(found, "__module__", 0) == name]
    names = getattr(module, "__all__", own)
    return {each: getattr(module, each) for each in names if each[0] != "_"}


NAMES = [
    pytest.param(module, name, found, id=f"{module}.{name}")
    for module in MODULES
    for name, found in public_names(module).items()
    if callable(found)
]


@pytest.mark.keras3_only("the reference is written for Keras 3")
def test_the_reference_has_every_public_name():
    shown = re.findall(r"^::: ([\w.]+)$", REFERENCE.read_text(), re.MULTILINE)
    names = {
        "tf_adasum.optimizers.lamb.LAMB" if name == "LAMB" else f"{module}.{name}"
        for module, name, _ in (case.values for case in NAMES)
    }
    assert sorted(shown) == sorted(names)


@pytest.mark.version_independent
@pytest.mark.keras3_only("there LAMB is that of TensorFlow Addons")
@pytest.mark.parametrize(("module", "name", "found"), NAMES)
def test_public_names_are_documented_with_types_and_an_example(module, name, found):
    docstring = inspect.getdoc(found)
    assert docstring.splitlines()[0].endswith((".", ":")) and ">>>" in docstring
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        kinds = [each.annotation for each in signature.parameters.values()]
        assert inspect.Signature.empty not in (*kinds, signature.return_annotation)


@pytest.mark.version_independent
def test_every_code_has_an_answer():
    package = Path(tf_adasum.__file__).parent
    said = {code for path in package.rglob("*.py") for code in CODE.findall(path.read_text())}
    answers = (REFERENCE.parent / "troubleshooting.md").read_text()
    assert said == set(re.findall(r'^<a id="tfa-\d+"></a>(TFA-\d+): ', answers, re.MULTILINE))
