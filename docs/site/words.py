"""Find words that this project does not write: `python docs/site/words.py`, in `make lint`.

Reads documents outside of code and quotations, and docstrings of modules. (proselint takes no
table of one's own, and Vale's package downloads a program when it is installed.)
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKED = ["docs/**/*.md", "README.md"]  # add others when they are rewritten: "tf_adasum/**/*.py"
NOT_YET = "hooks compatibility"
LEFT_OUT = {ROOT / "docs" / f"{name}.md" for name in NOT_YET.split()}
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


def blank(text):
    """Return as many spaces, and the ends of lines."""
    return re.sub(r"[^\n]", " ", text)


def found(path):
    """Yield the line, the words and what to write instead, for each place in a file."""
    text = path.read_text()
    if path.suffix == ".py":  # docstrings alone
        parts = enumerate(text.split('"""'))
        text = "   ".join(part if index % 2 else blank(part) for index, part in parts)
    prose = CODE.sub(lambda match: blank(match[0]), text)
    for word, instead in WORDS.items():
        for match in re.finditer(rf"(?i)\b(?:{word})", prose):
            line = 1 + prose.count("\n", 0, match.start())
            yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: {instead}"


if __name__ == "__main__":
    paths = sorted({path for names in CHECKED for path in ROOT.glob(names)} - LEFT_OUT)
    sys.exit("\n".join(line for path in paths for line in found(path)) or 0)
