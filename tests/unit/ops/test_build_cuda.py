"""Variables of the build; tests/wheels/test_wheel.py reads the kernels that nvcc has compiled."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.version_independent

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("value", "error"), [("0", "NotBuilt"), ("/none", "SystemExit")])
def test_ucx_is_left_out_or_in_its_folder(value, error, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "custom_ops")
    monkeypatch.setenv("TF_ADASUM_UCX", value)
    with pytest.raises(BaseException, match=f"TF_ADASUM_UCX='?{value}") as raised:
        importlib.import_module("build_ucx").include_folder()
    assert raised.type.__name__ == error


@pytest.mark.parametrize(
    ("name", "value"), [("TF_ADASUM_CUDA", "yes"), ("ADASUM_CUDA_ARCHS", "abc"), ("NVCC", "/none")]
)
def test_bad_variables_are_refused_before_an_earlier_build_is_touched(tmp_path, name, value):
    earlier = tmp_path / "tf_adasum/ops/_adasum_ops_tf2.21.so"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("an earlier build")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and f"{name}={value!r}" in done.stderr
    assert earlier.exists()
