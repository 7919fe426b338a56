"""The README for a package index, where links to files of the repository do not work."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = re.compile(r'^Source = "(.+)"$', re.MULTILINE)
IMAGE = re.compile(r"^!\[[^]]*\]\((?!https?:)([^)]+)\)\n*", re.MULTILINE)
LINK = re.compile(r"\[((?:[^][]|\[[^]]*\])*)\]\((?!https?:)([^)]+)\)")
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def pypi_description(readme=None, project=None):
    """Return the README with its relative links changed to links to the project's `Source`.

    If the project has no `Source`, these links become plain text, and images are removed.

    Args:
        readme: the text of the README. Defaults to the text of README.md.
        project: the text of pyproject.toml, which may have a `Source` in `[project.urls]`.
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

    parts = CODE.split(readme)  # every second part is code
    return "".join(
        part if index % 2 else LINK.sub(link, IMAGE.sub(image, part))
        for index, part in enumerate(parts)
    )
