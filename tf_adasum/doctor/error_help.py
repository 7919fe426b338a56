"""Find the answer in docs/troubleshooting.md for the code at the end of a message.

In a wheel, a copy of the page is next to this file (setup.py makes it). In a clone, the page is in
docs/. Uses only the standard library.
"""

import re
from pathlib import Path

PAGE = "troubleshooting.md"
_PLACES = (Path(__file__).with_name(PAGE), Path(__file__).parents[2] / "docs" / PAGE)
# One section of the page: its heading, the code with its anchor, a part of the message, the answer.
_SECTION = re.compile(
    r"^### ([^\n]+)\n\n<a [^\n]+></a>(TFA-\d+): `([^\n]+)`\n\n(.*?)\s*(?=^##|\Z)",
    re.MULTILINE | re.DOTALL,
)


def answers() -> dict[str, str]:
    """Return the answers by their codes, each as it is in the page.

    Raises:
        FileNotFoundError: if the page is neither next to this file nor in docs/.
    """
    place = next((each for each in _PLACES if each.exists()), _PLACES[0])
    sections = _SECTION.findall(place.read_text(encoding="utf-8"))
    return {
        code: f"{code}: {title}\nThe message contains: {words}\n\n{text}"
        for title, code, words, text in sections
    }


def answer(asked: str) -> str:
    """Return the answer to a code.

    Args:
        asked: the code, such as ``"TFA-501"``; ``"tfa-501"`` and ``"501"`` also work.

    Raises:
        ValueError: if there is no such code.

    Example:
        >>> print(answer("504").partition(" reached")[0])
        TFA-504: A worker finished before the others
        The message contains: has ended, and
        <BLANKLINE>
        One worker
    """
    found = answers()
    code = "TFA-" + asked.strip().upper().removeprefix("TFA-")
    if code not in found:
        raise ValueError(f"the code must be one of {', '.join(found)}. Received: {asked}")
    return found[code]
