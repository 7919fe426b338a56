"""The reference has every public name, and every code of a message has an answer."""

import inspect
import re
from pathlib import Path

import pytest

import tf_adasum

PACKAGE = Path(tf_adasum.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
MODULES = ("callbacks", "optimizers", "rules", "schedules", "ops")


@pytest.mark.keras3_only("the reference is written for Keras 3")
def test_the_reference_has_every_public_name_and_each_has_an_example():
    shown = re.findall(r"^::: ([\w.]+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    names = set()
    for name in ("tf_adasum", *(f"tf_adasum.{each}" for each in MODULES)):
        module = getattr(tf_adasum, name.partition(".")[2], tf_adasum)
        own = [k for k, v in vars(module).items() if getattr(v, "__module__", 0) == name]
        public = [each for each in getattr(module, "__all__", own) if each[0] != "_"]
        found = {each: getattr(module, each) for each in public if callable(getattr(module, each))}
        names |= {f"{name}.{each}" for each in found}
        assert [n for n, each in found.items() if ">>>" not in inspect.getdoc(each)] == []
    names = {name.replace("optimizers.LAMB", "optimizers.lamb.LAMB") for name in names}
    assert sorted(shown) == sorted(names)


@pytest.mark.version_independent
def test_every_code_has_an_answer():
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    answers = (DOCS / "troubleshooting.md").read_text()
    answered = set(re.findall(r'^<a id="tfa-\d+"></a>(TFA-\d+): ', answers, re.MULTILINE))
    assert set(re.findall(r"TFA-\d{3}", sources)) == answered
