"""What the site has beyond the pages of docs/: hooks of MkDocs.

- The README is the home page, with a button and three ways in.
- The reference is made from the sources (`api`).
- What documents link to outside of docs/, such as reports and sources, becomes a page of its own
  under repository/, which the search leaves out: so every link stays within the site.
- A tutorial is a notebook, too, to be downloaded.
- Names of the public API in code spans lead to the reference, formulas become MathML, and a click
  on a picture opens it at its full size.
"""

import html
import posixpath
import re
from pathlib import Path

import api
import jupytext
import messages
from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
HOME = "index.md"
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")
# Fenced blocks and code spans, in which nothing is a link; every second part of a split is one.
CODE = re.compile(r"(^```.*?^```$|``.+?``|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL
)
SPAN = re.compile(
    r"<(a|h\d|pre)\b.*?</\1>|<code>(?:tf_adasum\.)?([\w.]+)(?:\(\))?</code>", re.DOTALL
)
PICTURE = re.compile(r'(<img [^>]*src="([^"]+\.(?:svg|png))"[^>]*/?>)')
ANSWER = re.compile(r'^(### .+)\n\n<a id="(tfa-\d+)"></a>TFA-\d+: ', re.MULTILINE)
ALL_MESSAGES = "There are more: [all messages](reference/messages.md)."
MOST_LINES, MOST_CHARACTERS = 500, 80_000  # of a file that is shown, such as a report of runs
# How much more, or less, a page counts in the search: who searches has a task or a message.
TASKS = ("how_to/", "tutorials/", "migration/", "troubleshooting", "training", "clusters")
TASKS += ("choosing", "install", "optimizers", "rules", "reliability/")
BOOSTS = {
    **dict.fromkeys(("reliability/networks", "reliability/disks", "reliability/index"), 1),
    **dict.fromkeys(TASKS, 2),
    **dict.fromkeys(("evidence/", "compatibility", "hooks", "kernels", "explanation/"), 0.5),
    "cost_model": 0.5,
    "reference/messages": 0.5,
    "versions": 3,
}
# The home page: what stands behind the first paragraph of the README.
ENTRIES = """
[Train on four workers](docs/tutorials/first_training.md){ .md-button .md-button--primary }

<div class="entries" markdown>
<div markdown>
**[Start](docs/install.md)**

[Install](docs/install.md), do the [first training](docs/tutorials/first_training.md), or
[migrate from Horovod](docs/migration/horovod.md).
</div>
<div markdown>
**[How to](docs/training.md)**

[Train](docs/training.md), run on [a cluster](docs/clusters.md), [resume after a
crash](docs/how_to/checkpoints.md), [make it fast](docs/how_to/profiling.md).
</div>
<div markdown>
**[Why](docs/explanation/adasum.md)**

[How Adasum works](docs/explanation/adasum.md), and [the evidence](docs/evidence/index.md) for it.
</div>
</div>
"""
PICTURES = {".png", ".svg"}
LANGUAGES = {
    ".py": "python",
    ".sh": "sh",
    ".yaml": "yaml",
    ".json": "json",
    ".h": "cpp",
    ".cuh": "cpp",
    ".cc": "cpp",
}


def on_files(files, config):
    """Add the home page, the reference, and what documents link to."""
    own = {HOME: home()}
    own |= {f"reference/{name}": text for name, text in api.pages().items()}
    own["reference/messages.md"] = messages.page()
    for uri, text in own.items():
        files.append(File.generated(config, uri, content=text))
    for file in files.documentation_pages():
        if file.src_uri.startswith("tutorials/"):
            shown = file.content_string.replace("```sh\n", "```\n")  # to read, not to run
            notebook = jupytext.writes(jupytext.reads(shown, "md"), "ipynb")
            uri = file.src_uri.replace(".md", ".ipynb")
            files.append(File.generated(config, uri, content=notebook))
    ahead = [file.src_uri for file in files.documentation_pages()]
    ahead += ["repository/CHANGELOG.md", "repository/CONTRIBUTING.md"]
    seen = set(ahead[:-2])
    while ahead:
        uri = ahead.pop()
        if uri not in seen and uri.startswith("repository/"):
            files.append(repository_file(uri, config))
        seen.add(uri)
        if uri.endswith(".md") and not uri.startswith("reference/"):
            text = files.get_file_from_path(uri).content_string
            ahead += [other for other in targets(text, uri) if other not in seen]
    return files


def home():
    """Return the README with the three ways in behind its first paragraph."""
    title, first, rest = (ROOT / "README.md").read_text().split("\n\n", 2)
    return "\n\n".join([title, first, ENTRIES, rest])


def repository_file(uri, config):
    """Return the file of the site for one of the repository, or for one of its folders."""
    path = ROOT / path_of(uri)
    if path.suffix in PICTURES:
        return File.generated(config, uri, content=path.read_bytes())
    if path.is_dir():
        names = sorted(
            each.name
            for each in path.iterdir()
            if each.name[0] not in "._" and each.suffix != ".so"
        )
        text = f"# {path_of(uri)}/\n\n" + "".join(f"- `{name}`\n" for name in names)
        text += "" if len(text) > 100 else "\nA folder of the repository.\n"
    elif path.suffix == ".md":
        text = path.read_text()
    else:
        lines = path.read_text().splitlines()
        whole = path.stat().st_size <= MOST_CHARACTERS
        most = MOST_LINES if whole else MOST_CHARACTERS * len(lines) // path.stat().st_size
        most = min(MOST_LINES, most)
        shown = "\n".join(lines[:most])
        more = f"The first {most} of {len(lines)} lines." if lines[most:] else ""
        language = LANGUAGES.get(path.suffix, "text")
        text = f"# {path.name}\n\n`{path_of(uri)}`\n\n````{language}\n{shown}\n````\n\n{more}\n"
    return File.generated(config, uri, content=text)


def path_of(uri):
    """Return the path in the repository of a file of the site."""
    if uri == HOME:
        return "README.md"
    if not uri.startswith("repository/"):
        return f"docs/{uri}"
    path = uri.removeprefix("repository/")
    if path.endswith("/index.md"):
        return path.removesuffix("/index.md")
    without = path.removesuffix(".md")
    return path if (ROOT / path).is_file() else without


def uri_of(path):
    """Return the file of the site for a path in the repository; None where there is nothing."""
    if path == "README.md":
        return HOME
    if not (ROOT / path).exists():
        return None
    if path.startswith("docs/") and not path.endswith(".py") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"repository/{path}/index.md"
    return f"repository/{path}" + ("" if Path(path).suffix in {*PICTURES, ".md"} else ".md")


def target_of(link, uri):
    """Return the file of the site that a link on a page leads to; None where it leads nowhere."""
    return uri_of(posixpath.normpath(posixpath.join(posixpath.dirname(path_of(uri)), link)))


def targets(text, uri):
    """Return the files of the site that a page links to."""
    found = [LINK.findall(part) for part in CODE.split(text)[::2]]
    all_targets = [target_of(link, uri) for links in found for _, link, _, _ in links]
    return [target for target in all_targets if target]


def on_page_markdown(markdown, page, **_):
    """Let links to files of the repository lead to their pages."""
    uri = page.file.src_uri
    if uri.startswith("repository/"):
        page.meta["search"] = {"exclude": True}
    else:
        boost = next((boost for start, boost in BOOSTS.items() if uri.startswith(start)), 1)
        page.meta["search"] = {"boost": boost}
    if uri == HOME:
        page.meta["hide"] = ["navigation"]  # of one page
    if uri.startswith("reference/"):
        return markdown

    def link(match):
        begin, path, anchor, end = match.groups()
        if path.startswith("reference/") or path.endswith(".ipynb"):  # made for the site
            return match[0]
        target = target_of(path, uri)
        if not target:  # strict: it fails there
            return match[0]
        return (
            begin + posixpath.relpath(target, posixpath.dirname(uri) or ".") + (anchor or "") + end
        )

    if uri.startswith("tutorials/"):
        notebook = posixpath.basename(uri).replace(".md", ".ipynb")
        markdown = markdown.replace("\n", f"\n\n[Download it as a notebook]({notebook})\n", 1)
    markdown = markdown.replace("<!-- all messages -->", ALL_MESSAGES)
    markdown = ANSWER.sub(heading_of_answer, markdown)
    parts = CODE.split(markdown)
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def heading_of_answer(match):
    """Return the heading of an answer with its code, by which the search finds the answer."""
    title, anchor = match.groups()
    return f"{title} ({anchor.upper()}) {{#{anchor}}}\n\nThe message contains "


def on_page_content(content, page, **_):
    """Make formulas MathML, and let names and pictures lead somewhere."""
    anchors = api.anchors()
    here = posixpath.dirname(page.file.dest_uri) or "."

    def formula(match):
        kind, text = match.groups()
        if kind == "span":
            return convert(html.unescape(text))
        return f'<div class="formula">{convert(html.unescape(text), display="block")}</div>'

    def name(match):
        target = anchors.get(match[2] or "")
        if not target:
            return match[0]
        return f'<a href="{posixpath.relpath(target, here)}">{match[0]}</a>'

    if page.file.src_uri.startswith("repository/"):  # lines of any length
        content = f'<div class="source">{content}</div>'
    content = PICTURE.sub(r'<a class="picture" href="\2">\1</a>', content)
    return SPAN.sub(name, FORMULA.sub(formula, content))
