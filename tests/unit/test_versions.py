"""One table of supported versions: what the files say that cannot import it agrees with it."""

import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tf_adasum import _version
from tf_adasum._version import KERAS, PYTHON, TENSORFLOW, newer, requirement, unsupported_reason

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


@pytest.mark.parametrize("known", [TENSORFLOW, KERAS])
def test_the_requirement_admits_the_table(known):
    major = _version.major_minor(known[0])[0]
    versions = [f"{major}.{minor}.9" for minor in range(60)]
    admitted = SpecifierSet(requirement(known)).filter(versions)
    assert tuple(map(_version.series, admitted)) == known


@pytest.mark.parametrize(
    ("tensorflow", "keras", "reason"),
    [
        ("2.18.1", "3.10.0", r"^Keras 3\.10\.0 is too old: pip install 'keras>=3\.11,<3\.16'$"),
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
        ("2.15.1", "2.15.0", ""),
    ],
)
def test_what_is_newer_is_named_and_tried(tensorflow, keras, named):
    assert newer(tensorflow, keras) == named
    assert unsupported_reason(tensorflow, keras) == ""


def test_pyproject_agrees():
    of_addons = f"=={_version.TENSORFLOW_OF_ADDONS}.*", f"=={_version.KERAS_OF_ADDONS}.*"
    for tensorflow, keras in ((requirement(TENSORFLOW), requirement(KERAS)), of_addons):
        for name in ("tensorflow-cpu", "tensorflow[and-cuda]"):
            assert f'["{name}{tensorflow}", "keras{keras}"' in PYPROJECT
    assert PYPROJECT.count(f"tensorflow-addons=={_version.ADDONS}.*") == 2
    assert tuple(re.findall(r":: Python :: (\d\.\d+)", PYPROJECT)) == PYTHON
    assert f'requires-python = "{requirement(PYTHON)}"' in PYPROJECT
