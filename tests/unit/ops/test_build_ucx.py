"""Where the build finds UCX's headers, and its errors if there are none."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "custom_ops"


@pytest.fixture
def build_ucx(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import build_ucx

    monkeypatch.delenv(build_ucx.VARIABLE, raising=False)
    monkeypatch.setattr(build_ucx, "SYSTEM", ())
    monkeypatch.setattr(build_ucx, "_of_the_wheel", list)
    return build_ucx


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("", "NotBuilt", "pip install libucx-cu12, or apt's libucx-dev"),
        ("0", "NotBuilt", "TF_ADASUM_UCX=0"),
        ("/none", "SystemExit", "Received: TF_ADASUM_UCX='/none"),
    ],
)
def test_without_headers(build_ucx, monkeypatch, value, error, message):
    monkeypatch.setenv(build_ucx.VARIABLE, value)
    errors = {"NotBuilt": build_ucx.NotBuilt, "SystemExit": SystemExit}
    with pytest.raises(errors[error], match=message):
        build_ucx.include_folder()
