"""The links of the documents lead somewhere, and the targets of make that they name exist."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DOCUMENTS = [ROOT / "README.md", CONTRIBUTING, ROOT / "CHANGELOG.md"]
DOCUMENTS += [ROOT / "SECURITY.md", ROOT / "CODE_OF_CONDUCT.md"]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS += [
    ROOT / each / "README.md" for each in ("benchmarks", "custom_ops", "tf_adasum/compat")
]
DOCUMENTS += (ROOT / "experiments").rglob("README.md")
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


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = LINK.findall(CODE.sub("", document.read_text()))
    assert len(links) > 15 or document != DOCUMENTS[0]  # README.md
    for path, anchor in links:
        target = document.parent / path if path else document
        assert target.exists() and (not anchor or anchor in anchors_of(target)), (path, anchor)
