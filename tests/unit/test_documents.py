"""The links of the documents lead somewhere, and the documents have all names and codes."""

import inspect
import re
from pathlib import Path

import pytest

import tf_adasum

ROOT = Path(__file__).parents[2]
PACKAGE = Path(tf_adasum.__file__).parent
DOCS = ROOT / "docs"
MODULES = ("callbacks", "optimizers", "rules", "schedules", "ops")
README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS += [
    ROOT / each / README.name for each in ("benchmarks", "custom_ops", "tf_adasum/compat")
]
DOCUMENTS += (ROOT / "experiments").rglob(README.name)
# [text](path#heading), not of another site.
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors_of(document):
    """The names that GitHub gives to a document's headings, and those that it sets."""
    text = CODE.sub("", document.read_text())
    headings = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text)]
    return {heading.replace(" ", "-") for heading in headings} | {*ANCHOR.findall(text)}


@pytest.mark.version_independent
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = LINK.findall(CODE.sub("", document.read_text()))
    assert len(links) > 15 or document != README
    for path, anchor in links:
        target = document.parent / path if path else document
        assert target.exists() and (not anchor or anchor in anchors_of(target)), (path, anchor)


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
