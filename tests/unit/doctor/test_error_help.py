"""`tf-adasum-doctor --explain`: the page of answers, read out by the code of a message."""

import email.message
import importlib.metadata
import re
from pathlib import Path

import pytest

from tf_adasum import doctor, errors
from tf_adasum.doctor import error_help
from tf_adasum.errors import see

pytestmark = pytest.mark.version_independent

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"


@pytest.mark.parametrize("given", ["TFA-501", "tfa-501", "501"])
def test_an_answer_is_printed(given, capsys):
    assert doctor.main(["--explain", given]) == 0
    printed = capsys.readouterr().out
    title, words, _, text = printed.split("\n", 3)
    assert title == "TFA-501: A worker failed, was killed, ran out of memory, or does not answer"
    assert words == "The message contains: was lost" and text.startswith("If the message")
    assert "start again from a backup](checkpoints.md" in " ".join(printed.split())
    assert "TFA-502" not in printed


def test_another_code_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        doctor.main(["--explain", "TFA-999"])
    message = capsys.readouterr().err
    assert "the code must be one of TFA-101, TFA-102" in message and "Received: TFA-999" in message


def test_every_heading_has_an_answer():
    headings = re.findall(r'^<a id="tfa-\d+"></a>(TFA-\d+): ', PAGE.read_text(), re.MULTILINE)
    assert list(error_help.answers()) == headings and len(headings) > 50
    assert all(len(text.split()) > 10 for text in error_help.answers().values())
    assert "\n```python\nwith strategy.scope():\n    model" in error_help.answer("301")


def test_a_wheel_has_the_page_beside_the_doctor(monkeypatch, tmp_path):
    copy = tmp_path / error_help.PAGE
    code = '<a id="tfa-101"></a>TFA-101: `some words`'
    copy.write_text(f"# Title\n\n### Fault\n\n{code}\n\nAn answer.\n\n## Next\n")
    monkeypatch.setattr(error_help, "_PLACES", (copy, PAGE))
    (found,) = error_help.answers().values()
    assert found == "TFA-101: Fault\nThe message contains: some words\n\nAn answer."


def test_a_message_ends_with_the_address_of_the_site(monkeypatch):
    metadata = email.message.Message()
    metadata["Project-URL"] = "Source, https://a.example"
    metadata["Project-URL"] = "Documentation, https://b.example/docs/"
    monkeypatch.setattr(importlib.metadata, "metadata", {"tf-adasum": metadata}.__getitem__)
    monkeypatch.setattr(errors, "_site", errors._site.__wrapped__)
    end = "TFA-501, https://b.example/docs/troubleshooting.html#tfa-501)"
    assert see("TFA-501") == "(tf-adasum-doctor --explain " + end
