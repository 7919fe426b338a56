"""One table of supported versions: what the files say that cannot import it agrees with it."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tf_adasum import _version

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERIES = {
    "tensorflow": {_version.TENSORFLOW, _version.TENSORFLOW_OF_ADDONS},
    "keras": {_version.KERAS, _version.KERAS_OF_ADDONS},
    "tensorflow-addons": {_version.ADDONS},
}
REQUIREMENT = re.compile(r"\b(tensorflow(?:-cpu|-addons)?|keras)(?:\[[\w-]+\])?([=<>!~][^'\"\s;]+)")


def admits(specifiers, series):
    """Whether specifiers admit all versions of a series, and none of its neighbours."""
    major, minor = map(int, series.split("."))
    found = SpecifierSet(specifiers)
    others = [f"{major}.{minor - 1}.9", f"{major}.{minor + 1}.0", f"{major + 1}.0.0"]
    return series + ".9" in found and not any(other in found for other in others)


def requirements_of(extra):
    found = map(Requirement, PYPROJECT["optional-dependencies"][extra])
    return {each.name.replace("-cpu", ""): str(each.specifier) for each in found}


@pytest.mark.parametrize("extra", ["cpu", "cuda"])
def test_the_extras_of_the_main_stack(extra):
    found = requirements_of(extra)
    assert admits(found["tensorflow"], _version.TENSORFLOW)
    assert admits(found["keras"], _version.KERAS)


@pytest.mark.parametrize("extra", ["addons", "addons-cpu"])
def test_the_extras_of_the_stack_of_addons(extra):
    found = requirements_of(extra)
    assert admits(found["tensorflow"], _version.TENSORFLOW_OF_ADDONS)
    assert admits(found["keras"], _version.KERAS_OF_ADDONS)
    assert admits(found["tensorflow-addons"], _version.ADDONS)


def test_what_is_required_without_an_extra():
    (keras,) = (own for own in map(Requirement, PYPROJECT["dependencies"]) if own.name == "keras")
    assert all(f"{series}.9" in keras.specifier for series in SERIES["keras"])


def test_python():
    minors = [f"3.{minor}" for minor in range(5, 30)]
    required = SpecifierSet(PYPROJECT["requires-python"])
    assert tuple(minor for minor in minors if f"{minor}.9" in required) == _version.PYTHON
    prefix = "Programming Language :: Python :: "
    named = [name.removeprefix(prefix) for name in PYPROJECT["classifiers"] if prefix in name]
    assert tuple(named) == _version.PYTHON


@pytest.mark.parametrize("name", ["README.md", "Makefile"])
def test_every_requirement_in_a_file_is_of_a_supported_series(name):
    found = REQUIREMENT.findall((ROOT / name).read_text())
    assert found
    for package, specifiers in found:
        series = SERIES[package.replace("-cpu", "")]
        assert any(admits(specifiers, each) for each in series), (package, specifiers)


def test_what_the_readme_says():
    text = (ROOT / "README.md").read_text()
    rows = dict(re.findall(r"^\| ([\w ]+) \| (.*) \|$", text, re.MULTILINE))
    columns = {name: re.findall(r"\d+\.\d+", row) for name, row in rows.items()}
    assert columns["TensorFlow"] == list(_version.KERAS_OF_TENSORFLOW)
    assert columns["Keras"] == list(_version.KERAS_OF_TENSORFLOW.values())
    assert columns["TensorFlow Addons"] == [_version.ADDONS]
    assert columns["Python"][: len(_version.PYTHON)] == list(_version.PYTHON)
    assert f"TensorFlow {_version.TENSORFLOW} and Keras {_version.KERAS}" in text
    for name, series in re.findall(r"\b(TensorFlow|Keras) (\d\.\d+)", text):
        assert series in SERIES[name.lower()], f"{name} {series}"
