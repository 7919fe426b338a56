"""Find words that this project does not write: `python docs/site/words.py`, in `make lint`.

Reads documents outside of code and quotations, and the docstrings, comments and messages of the
package. (proselint takes no table of words, and Vale's package downloads a program when it is
installed.)
"""

import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKED = "docs/**/*.md README.md CHANGELOG.md CONTRIBUTING.md tf_adasum/**/*.py".split()
# Regular expressions, and what to write instead. "A warning tells you" is allowed.
WORDS = {
    r"(go|goes|going|went|gone) on\b(?! the\b| a\b)": "resume, continue",
    r"(says|said|saying|tells?|told|hears?|heard)\b(?! you)": "prints, reports, detects, receives",
    r"(played|plays|play)\b": "run, test, inject",
    r"opponents?\b": "baseline",
    r"headlines?\b": "claim, main result",
    r"strangers?\b": "unauthenticated client",
    r"the watch\b": "the failure detector",
    r"(last words|without a word)\b": "without an error report",
    r"(gives|given|gave) up\b|(is|has|are|have) gone\b": "is declared lost",
    r"(meets?|met|meeting)\b": "join, connect, rendezvous",
    r"(carriers?|what carries)\b": "transport, wire dtype",
    r"(stacks?|lanes?|rooms|doorstep)\b": "supported versions; package, module",
    r"one replica has \d": "one replica reaches",
    r"(longer|shorter|long|short) (steps?|gradients?)\b": "larger, smaller",
    r"as good as\b": "matches, within X of",
    r"(comes?|came) to the target": "reaches the target",
    r"(its|the|best|tuned|same|base) rates?\b(?! of)": "learning rate",
    r"beside\b": "alongside, next to",
    r"(was|were|is) (seen|found)\b": "we measured, we observed",
    r"belongs? into\b": "belongs in",
    r"exit codes?\b": "exit status",
    r"(by itself|by themselves)\b": "leave it out",
    r"\w+, too[.:;]": "also, before the verb",
}
CODE = r'^( *)(`{3,}).*?^\1\2|``.+?``|`[^`\n]+`|\]\([^)]*\)|"[^"\n]*"|“[^”]*”|<!--.*?-->'
CODE = re.compile(CODE, re.MULTILINE | re.DOTALL)


TEXT = re.compile(r"^(\w*)(\"\"\"|'''|[\"'])(.*)\2$", re.DOTALL)
NAME = re.compile(r"^ {8,}\w+:", re.MULTILINE)  # of an argument or an attribute
INSERTED = re.compile(r"\{[^{}]*\}")  # in an f-string


def blank(text):
    """Return as many spaces, and the ends of lines."""
    return re.sub(r"[^\n]", " ", text)


def sentences(source):
    """Return a Python source with nothing but its docstrings, comments and messages."""
    lines = [list(blank(line)) for line in source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (line, column), text = token.start, ""
        if token.type == tokenize.COMMENT:
            text = " " + token.string[1:]
        elif token.type == tokenize.STRING:
            prefix, quotes, inside = TEXT.match(token.string).groups()
            if "f" in prefix.lower():
                inside = INSERTED.sub(lambda match: "x" * len(match[0]), inside)
            if len(inside.split()) > 2 or quotes == '"""':  # fewer words are a name
                inside = NAME.sub(lambda match: blank(match[0]), inside)
                text = " " * len(prefix + quotes) + inside
        elif token.type == getattr(tokenize, "FSTRING_MIDDLE", None):  # since Python 3.12
            text = token.string
        for part in text.split("\n"):
            lines[line - 1][column : column + len(part)] = part
            line, column = line + 1, 0
    return "\n".join("".join(line) for line in lines)


def found(path):
    """Yield the line, the words and what to write instead, for each place in a file."""
    text = path.read_text()
    text = sentences(text) if path.suffix == ".py" else text
    prose = CODE.sub(lambda match: blank(match[0]), text)
    for word, instead in WORDS.items():
        for match in re.finditer(rf"(?i)\b(?:{word})".replace(" ", r"\s+"), prose):
            line = 1 + prose.count("\n", 0, match.start())
            words = " ".join(match[0].split())
            yield f"{path.relative_to(ROOT)}:{line}: {words!r}: {instead}"


if __name__ == "__main__":
    paths = {path for names in CHECKED for path in ROOT.glob(names)}
    sys.exit("\n".join(line for path in sorted(paths) for line in found(path)) or 0)
