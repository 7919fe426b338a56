"""One table of supported versions: what the files say that cannot import it agrees with it."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tf_adasum import _version
from tf_adasum._version import KERAS, PYTHON, TENSORFLOW, newer, unsupported_reason

try:
    import tomllib
except ImportError:  # Python 3.10
    import pip._vendor.tomli as tomllib

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PYPROJECT["optional-dependencies"]
SERIES_OF_ADDONS = {
    "tensorflow": _version.TENSORFLOW_OF_ADDONS,
    "keras": _version.KERAS_OF_ADDONS,
    "tensorflow-addons": _version.ADDONS,
}
KNOWN = {"tensorflow": TENSORFLOW, "keras": KERAS, "tensorflow-addons": ()}
SERIES = {name: {*KNOWN[name], series} for name, series in SERIES_OF_ADDONS.items()}
REQUIREMENT = re.compile(r"\b(tensorflow(?:-cpu|-addons)?|keras)(?:\[[\w-]+\])?([=<>!~][^'\"\s;]+)")
OLD_KERAS = r"^Keras 3\.10\.0 is too old: pip install 'keras>=3\.11,<3\.16'$"


def admitted(specifiers):
    """The series of which specifiers admit late versions."""
    found = SpecifierSet(str(specifiers))
    return {
        f"{major}.{minor}"
        for major in range(5)
        for minor in range(60)
        if f"{major}.{minor}.9" in found
    }


def requirements_of(extra):
    """For each package that an extra requires, which may be through another one, its series."""
    found = {}
    for each in map(Requirement, EXTRAS[extra]):
        if each.name == PYPROJECT["name"]:
            for other in each.extras:
                found |= requirements_of(other)
        else:
            found[each.name.replace("-cpu", "")] = admitted(each.specifier)
    return found


# ---- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [PYTHON, TENSORFLOW, KERAS])
def test_series_follow_each_other(known):
    major, first = _version.major_minor(known[0])
    assert known == tuple(f"{major}.{first + place}" for place in range(len(known)))
    if known != PYTHON:
        assert admitted(_version.requirement(known)) == {*known}


@pytest.mark.parametrize(
    ("tensorflow", "keras", "reason"),
    [
        ("2.18.1", "3.10.0", OLD_KERAS),
        ("2.15.1", "3.15.1", r"'tensorflow-cpu>=2\.16,<2\.22', or .* 'keras==2\.15\.\*'$"),
        ("2.14.0", "3.15.1", r"TensorFlow 2\.14\.0 is too old.*'tensorflow-cpu>=2\.16,<2\.22'$"),
        ("2.9.0", "2.9.0", r"^TensorFlow 2\.9\.0 .* Keras 2\.9\.0 .*keras>=3\.11"),
    ],
)
def test_what_is_too_old(tensorflow, keras, reason):
    assert re.search(reason, unsupported_reason(tensorflow, keras))


@pytest.mark.parametrize(
    ("tensorflow", "keras", "named"),
    [
        ("2.22.0.dev20261122", "3.15.1", "TensorFlow 2.22.0.dev20261122"),
        ("2.16.2", "3.16.0", "Keras 3.16.0"),
        ("3.0.0", "4.0.0", "TensorFlow 3.0.0 and Keras 4.0.0"),
    ],
)
def test_what_is_newer_is_named_and_tried(tensorflow, keras, named):
    assert newer(tensorflow, keras) == named
    assert unsupported_reason(tensorflow, keras) == ""


# ---- what other files say ----------------------------------------------------------------------


@pytest.mark.parametrize("extra", ["cpu", "cuda"])
def test_the_extras(extra):
    found = requirements_of(extra)
    assert TENSORFLOW[-1] in found["tensorflow"] <= {*TENSORFLOW}
    assert KERAS[-1] in found["keras"] <= {*KERAS}
    of_addons = requirements_of(f"keras2-{extra}")
    assert of_addons.pop("numpy")
    assert of_addons == {name: {SERIES_OF_ADDONS[name]} for name in SERIES}
    assert EXTRAS["addons" if extra == "cuda" else "addons-cpu"] == [f"tf-adasum[keras2-{extra}]"]


def test_python():
    assert admitted(PYPROJECT["requires-python"]) == {*PYTHON}
    classifiers = "\n".join(PYPROJECT["classifiers"])
    assert tuple(re.findall(r":: Python :: (\d\.\d+)", classifiers)) == PYTHON


@pytest.mark.parametrize("name", ["docs/install.md", "docs/mirrored.md", "Makefile"])
def test_every_requirement_in_a_file_is_of_a_supported_series(name):
    found = REQUIREMENT.findall((ROOT / name).read_text())
    assert found
    for package, specifiers in found:
        series = SERIES[package.replace("-cpu", "")]
        assert set() < admitted(specifiers) <= series, (package, specifiers)


def test_what_the_documents_say():
    readme = (ROOT / "README.md").read_text()
    text = (ROOT / "docs" / "install.md").read_text()
    assert f"TensorFlow from {TENSORFLOW[0]} to {TENSORFLOW[-1]}" in text
    assert f"Keras from {KERAS[0]} to {KERAS[-1]}" in text
    assert f"Python {PYTHON[0]} to {PYTHON[-1]}" in text
    assert _version.SUPPORTED_VERSIONS.partition(", and with")[0] in readme
    for name, series in re.findall(r"\b(TensorFlow|Keras) (\d\.\d+)", text + readme):
        assert series in SERIES[name.lower()], f"{name} {series}"
