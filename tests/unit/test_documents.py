"""The links of the documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
# [text](path#heading), not of another site.
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors_of(document):
    """The names that GitHub gives to a document's headings."""
    headings = HEADING.findall(CODE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    links = LINK.findall(CODE.sub("", document.read_text()))
    broken = []
    for path, anchor in links:
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append((path, anchor))
    assert not broken


def test_there_are_links_to_check():
    assert len(LINK.findall((ROOT / "README.md").read_text())) > 50
    assert "when-something-goes-wrong" in anchors_of(ROOT / "README.md")
