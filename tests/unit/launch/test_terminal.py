"""The launcher's output on a terminal: colors, aligned prefixes, and plain text where asked for."""

import os

import pytest
from support.launching import on_terminal

from tf_adasum.launch import terminal

# Worker 1 fails when worker 0 has written its line.
ENDS = """
print("line", flush=True)
while index and not os.path.exists(__file__ + ".ready"):
    time.sleep(0.01)
open(__file__ + ".ready", "w").close()
sys.exit(index)
"""
PLAIN = ["[worker 0] line", "[worker 1] line"]
FAILED = "tf-adasum-launch: worker 1 ended with exit status 1"


@pytest.mark.parametrize(
    ("variables", "has_colors"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_has_colors_unless_they_are_unwanted(script, variables, has_colors):
    code, text = on_terminal("-n", 2, script(ENDS), **variables)
    of_workers = sorted(line for line in text.splitlines() if "line" in line)
    assert code == 1
    if has_colors:
        assert of_workers == ["\x1b[32m[worker 1]\x1b[0m line", "\x1b[36m[worker 0]\x1b[0m line"]
        assert "\n\x1b[1mtf-adasum-launch:\x1b[0m worker 1" in text
    else:
        assert of_workers == PLAIN and "\x1b" not in text and FAILED in text


def test_prefixes_are_aligned_on_a_terminal_and_plain_elsewhere(monkeypatch):
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor == 1)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert terminal.prefix_of_worker(0, 1, 1) == b""
    assert terminal.prefix_of_worker(3, 12, 1) == b"\x1b[33m[worker 3]\x1b[0m  "
    assert terminal.prefix_of_worker(11, 12, 1) == b"\x1b[34m[worker 11]\x1b[0m "
    assert terminal.prefix_of_worker(3, 12, 2) == b"[worker 3] "
