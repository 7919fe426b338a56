"""The links of the documents lead somewhere, and the files and targets that they name exist."""

import re
from pathlib import Path

import pytest

from tf_adasum._version import __version__

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCUMENTS = [ROOT / "README.md", CONTRIBUTING, ROOT / "CHANGELOG.md"]
DOCUMENTS += [ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md"]
RECIPE = ROOT / ".github" / "conda-forge" / "recipe.yaml"
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS += [
    ROOT / each / "README.md" for each in ("benchmarks", "custom_ops", "tf_adasum/compat")
]
DOCUMENTS += [ROOT / "tests" / "COMPATIBILITY.md", *(ROOT / "experiments").rglob("README.md")]
# [text](path#heading), not of another site.
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
# `folder/file.py`, without a word such as NAME that stands for any.
PATH = re.compile(r"`((?:[\w.]+/)+(?:[\w.]+\.\w+)?|[\w.]+\.(?:py|h|cu))`")
ANY = re.compile("NAME|CONCERN|FILE|TOPIC")
PLACES = ["", "tf_adasum", "tf_adasum/aggregation", "tf_adasum/compat/keras", "tests/support"]
PLACES += ["custom_ops/cuda"]
MADE = ("build/",)  # what `make` makes
MAKE = re.compile(r"(?:`|^)make(?:\s[A-Z]+=\S+)*\s([a-z][\w-]*)", re.MULTILINE)
ENTRY = re.compile(r"^( *)(\S.*?)(?:  +.*|$)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors_of(document):
    """The names that GitHub gives to a document's headings, and those that it sets."""
    text = CODE.sub("", document.read_text())
    headings = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text)]
    return {heading.replace(" ", "-") for heading in headings} | {*ANCHOR.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = LINK.findall(CODE.sub("", document.read_text()))
    assert len(links) > 15 or document != DOCUMENTS[0]  # README.md
    for path, anchor in links:
        target = document.parent / path if path else document
        assert target.exists() and (not anchor or anchor in anchors_of(target)), (path, anchor)


def tree_of(document):
    """Yield the paths of the tree that a document draws, by their indentation."""
    (tree,) = re.findall(r"^```\n(tf_adasum/\n.*?)^```", document, re.MULTILINE | re.DOTALL)
    folders = []
    for line in tree.splitlines():
        indent, names = ENTRY.match(line).groups()
        depth = len(indent) // 2
        for name in names.split(", "):
            yield "".join(folders[:depth]) + name
        folders[depth:] = [name]


def test_the_tree_shows_what_is_there():
    shown = [path for path in tree_of(CONTRIBUTING.read_text()) if not ANY.search(path)]
    assert len(shown) > 40
    assert [path for path in shown if not (ROOT / path).exists()] == []
    packages = {path.name for path in (ROOT / "tf_adasum").iterdir() if path.name[:2] != "__"}
    assert packages == {Path(path).name for path in shown if len(Path(path).parts) == 2} & packages


def test_paths_in_contributing_exist():
    named = [path for path in PATH.findall(CONTRIBUTING.read_text()) if not ANY.search(path)]
    assert len(named) > 50
    for path in named:
        assert path.startswith(MADE) or any((ROOT / each / path).exists() for each in PLACES), path


@pytest.mark.parametrize("document", [ROOT / "README.md", CONTRIBUTING], ids=lambda path: path.name)
def test_targets_of_make_exist(document):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    said = set(MAKE.findall(document.read_text()))
    assert "test" in said and not said - targets


def test_the_citation_and_the_recipe_of_conda_are_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [__version__]
    for paper in ("2006.02924", "2007.05105"):
        assert paper in citation and paper in (ROOT / "README.md").read_text()
    if RECIPE.exists():  # in a clone
        assert f'version: "{__version__}"\n' in RECIPE.read_text()


@pytest.mark.skipif(not TEMPLATES.exists(), reason="only a clone has the templates of issues")
def test_reports_of_errors_ask_for_what_the_doctor_says():
    asked = {path.name: path.read_text() for path in TEMPLATES.glob("*.yml")}
    assert len(asked) == 4
    assert "tf-adasum-doctor --json" in asked["1-goes-wrong.yml"]
    assert asked["1-goes-wrong.yml"].count("required: true") == 3
