"""What the site has beyond the pages of docs/: hooks of MkDocs.

- The README is the home page.
- What a page links to outside of docs/, such as a report or a source, becomes a page under
  repository/, which the search leaves out: every link stays within the site.
- Names of the public API in code spans, and pages named in docstrings, become links.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
HOME = "index.md"
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
# Fenced blocks and code spans, in which nothing is a link; every second part of a split is one.
CODE = re.compile(r"(^```.*?^```|``.+?``|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r'^(### .+)\n\n<a id="(tfa-\d+)"></a>TFA-\d+: ', re.MULTILINE)
SPAN = re.compile(
    r"<(a|h\d|pre)\b.*?</\1>|<code>(?:tf_adasum\.)?([\w.]+)(?:\(\))?</code>", re.DOTALL
)
PAGE_IN_DOCSTRING = re.compile(r"\bdocs/(\w+)\.md\b")
PUBLIC = re.compile(r"^::: (tf_adasum\.[\w.]+)", re.MULTILINE)
PICTURES = {".png", ".svg"}
MOST_LINES = 500  # of a source or a list of runs that is shown


def on_files(files, config):
    """Add the home page, and what documents link to."""
    files.append(File.generated(config, HOME, content=(ROOT / "README.md").read_text()))
    ahead = [file.src_uri for file in files.documentation_pages()]
    ahead.append("repository/CHANGELOG.md")
    seen = set()
    while ahead:
        uri = ahead.pop()
        if uri in seen:
            continue
        seen.add(uri)
        if uri.startswith("repository/"):
            files.append(repository_file(uri, config))
        if uri.endswith(".md"):
            text = files.get_file_from_path(uri).content_string
            for part in CODE.split(text)[::2]:
                targets = [target_of(link, uri) for _, link, _, _ in LINK.findall(part)]
                ahead += [each for each in targets if each and each.startswith("repository/")]
    return files


def repository_file(uri, config):
    """Return the file of the site for one of the repository, or for a folder."""
    path = path_of(uri)
    if path.suffix in PICTURES:
        return File.generated(config, uri, content=path.read_bytes())
    title = path.relative_to(ROOT)
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.name[0] not in "._")
        text = f"# {title}/\n\n" + "".join(f"- `{name}`\n" for name in names)
    elif path.suffix == ".md":
        text = path.read_text()
    else:
        lines = path.read_text().splitlines()
        shown = "\n".join(line[:2000] for line in lines[: MOST_LINES if len(lines) < 5000 else 20])
        text = f"# {title}\n\n````{path.suffix[1:]}\n{shown}\n````\n"
    return File.generated(config, uri, content=text)


def path_of(uri):
    """Return the file of the repository, or the folder, that a page of the site shows."""
    if uri == HOME:
        return ROOT / "README.md"
    if not uri.startswith("repository/"):
        return ROOT / "docs" / uri
    path = ROOT / uri.removeprefix("repository/")
    if path.exists():
        return path
    return path.parent if path.name == "index.md" else path.with_suffix("")


def target_of(link, uri):
    """Return the file of the site that a link on a page leads to; None where it leads nowhere."""
    folder = posixpath.dirname(str(path_of(uri).relative_to(ROOT)))
    path = posixpath.normpath(posixpath.join(folder, link))
    if path == "README.md":
        return HOME
    if not (ROOT / path).exists():
        return None
    if path.startswith("docs/") and not path.endswith(".py") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    return f"repository/{path}" + ("" if Path(path).suffix in {*PICTURES, ".md"} else ".md")


def on_page_markdown(markdown, page, **_):
    """Let links to files of the repository lead to their pages."""
    uri = page.file.src_uri
    if uri.startswith("repository/"):
        page.meta["search"] = {"exclude": True}

    def link(match):
        begin, path, anchor, end = match.groups()
        target = target_of(path, uri)
        if not target:  # strict: it fails there
            return match[0]
        path = posixpath.relpath(target, posixpath.dirname(uri) or ".")
        return f"{begin}{path}{anchor or ''}{end}"

    def heading(match):  # with its code, by which the search finds the answer
        return f"{match[1]} ({match[2].upper()}) {{#{match[2]}}}\n\nThe message contains "

    parts = CODE.split(ANSWER.sub(heading, markdown))
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def on_page_content(content, page, **_):
    """Let names of the public API, and pages that docstrings name, lead somewhere."""
    here = posixpath.dirname(page.file.dest_uri) or "."
    reference = posixpath.relpath("reference.html", here)
    anchors = {}
    for path in PUBLIC.findall((ROOT / "docs" / "reference.md").read_text()):
        short = path.removeprefix("tf_adasum.")
        anchors |= {short: path, short.rpartition(".")[2]: path}

    def name(match):
        target = anchors.get(match[2] or "")
        return f'<a href="{reference}#{target}">{match[0]}</a>' if target else match[0]

    content = SPAN.sub(name, content)
    if page.file.src_uri == "reference.md":
        return PAGE_IN_DOCSTRING.sub(
            lambda page: f'<a href="{page[1]}.html">{page[1].replace("_", " ")}</a>', content
        )
    if page.file.src_uri.startswith("repository/"):  # lines of any length
        return f'<div class="source">{content}</div>'
    return content
