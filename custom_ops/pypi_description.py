"""The README as a package index shows it: no files stand beside it that its links could lead to."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = re.compile(r'^Source = "(.+)"$', re.MULTILINE)
IMAGE = re.compile(r"^!\[[^]]*\]\((?!https?:)([^)]+)\)\n*", re.MULTILINE)
LINK = re.compile(r"\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:)([^)]+)\)")
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def pypi_description(readme=None, project=None):
    """Return the README with links to the project's `Source`; without one they become plain text.

    Args:
        readme: its text. Defaults to README.md.
        project: the text of pyproject.toml, whose `[project.urls]` may have `Source`.
    """
    readme = (ROOT / "README.md").read_text() if readme is None else readme
    project = (ROOT / "pyproject.toml").read_text() if project is None else project
    found = SOURCE.search(project)

    def link(match):
        text, target = match.groups()
        if not found:
            return text
        return f"[{text}]({found[1]}{'' if target[0] == '#' else '/blob/main/'}{target})"

    def image(match):
        return match[0].replace(match[1], f"{found[1]}/raw/main/{match[1]}") if found else ""

    parts = CODE.split(readme)  # every second one is code
    return "".join(
        part if index % 2 else LINK.sub(link, IMAGE.sub(image, part))
        for index, part in enumerate(parts)
    )
