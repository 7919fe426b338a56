"""Where the build finds UCX's headers, and what it says where there are none."""

import sys
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


def test_without_headers_the_reason_says_what_to_install(build_ucx, monkeypatch, tmp_path):
    NotBuilt = sys.modules["build_cuda"].NotBuilt
    with pytest.raises(NotBuilt, match="pip install libucx-cu12, or apt's libucx-dev"):
        build_ucx.include_folder()
    monkeypatch.setattr(build_ucx, "SYSTEM", (str(with_headers(tmp_path / "system")),))
    monkeypatch.setenv(build_ucx.VARIABLE, "0")
    with pytest.raises(NotBuilt, match="TF_ADASUM_UCX=0"):
        build_ucx.include_folder()
    monkeypatch.setenv(build_ucx.VARIABLE, str(tmp_path))
    with pytest.raises(SystemExit, match="Received: TF_ADASUM_UCX='"):
        build_ucx.include_folder()
