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


def with_headers(folder):
    header = folder / "ucp/api/ucp.h"
    header.parent.mkdir(parents=True)
    header.touch()
    return folder


def test_the_order_of_places(build_ucx, monkeypatch, tmp_path):
    given, wheel, system = (with_headers(tmp_path / name) for name in ("given", "wheel", "system"))
    monkeypatch.setattr(build_ucx, "SYSTEM", (str(tmp_path), str(system)))
    assert build_ucx.include_folder() == system
    monkeypatch.setattr(build_ucx, "_of_the_wheel", lambda: [wheel])
    assert build_ucx.include_folder() == wheel
    monkeypatch.setenv(build_ucx.VARIABLE, str(given))
    assert build_ucx.include_folder() == given


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
