"""Finding and calling a CUDA compiler, with stand-ins: none of it needs CUDA."""

import importlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.cuda_library import build_cuda

pytestmark = pytest.mark.version_independent

# Knows some architectures, writes down its arguments, and makes the file it was asked for.
NVCC = """#!/bin/sh
case "$1" in
--list-gpu-arch) printf 'compute_75\\ncompute_80\\ncompute_90\\ncompute_121\\n' ;;
--version) printf 'Cuda compilation tools, release 12.9, V12.9.41\\nBuild stand-in\\n' ;;
*) echo "$@" > "$0.arguments"
   while [ "$1" != -o ]; do shift; done
   echo code > "$2" ;;
esac
"""


def program(path: Path, text=NVCC):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A machine without any CUDA compiler."""
    for name in ("NVCC", "CUDA_HOME", "CUDA_PATH", "ADASUM_CUDA_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + ":/bin")
    monkeypatch.setattr(build_cuda, "DEFAULT_HOMES", ())
    monkeypatch.setattr(build_cuda, "site_packages", lambda: [tmp_path / "site/nvidia"])
    return tmp_path


@pytest.fixture
def nvcc(nowhere, monkeypatch):
    path = program(nowhere / "nvcc")
    monkeypatch.setenv("NVCC", path)
    return path


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (None, ["sm_75", "sm_80", "sm_90", "compute_90"]),  # all that nvcc supports
        ("90", ["sm_90", "compute_90"]),
        ("80;75", ["sm_75", "sm_80", "compute_80"]),
        ("75", ["sm_75"]),
    ],
)
def test_nvcc_compiles_for_the_chosen_architectures(nvcc, tmp_path, monkeypatch, text, codes):
    if text:
        monkeypatch.setenv("ADASUM_CUDA_ARCHS", text)
    how = build_cuda.compile_kernels(tmp_path)
    assert how["compiler_version"] == "Build stand-in" and how["cuda"] == "12.9"
    assert how["architectures"] == [int(code[3:]) for code in codes if code.startswith("sm_")]
    arguments = Path(f"{nvcc}.arguments").read_text().split()
    generated = [argument for argument in arguments if argument.startswith("-gencode")]
    expected = [f"-gencode=arch=compute_{code.split('_')[1]},code={code}" for code in codes]
    assert generated == expected
    assert (tmp_path / build_cuda.KERNELS).read_text() == "code\n"


@pytest.mark.parametrize(
    ("text", "architectures", "message"),
    [
        (None, None, r"neither nvcc.*nor NVRTC"),
        (NVCC.replace("*)", '*) echo "k.cu(3): error" >&2; exit 1'), None, r"k.cu\(3\): error"),
        (NVCC, "70;80", r"does not know the architectures \[70\]"),
    ],
    ids=["no compiler", "failing nvcc", "old GPU"],
)
def test_compilations_that_fail(nowhere, tmp_path, monkeypatch, text, architectures, message):
    if text:
        monkeypatch.setenv("NVCC", program(nowhere / "nvcc", text))
    if architectures:
        monkeypatch.setenv("ADASUM_CUDA_ARCHS", architectures)
    with pytest.raises(build_cuda.NotBuilt, match=message):
        build_cuda.compile_kernels(tmp_path)


@pytest.mark.parametrize(("value", "error"), [("0", "NotBuilt"), ("/none", "SystemExit")])
def test_ucx_is_left_out_or_in_its_folder(value, error, monkeypatch):
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
        cwd=Path(__file__).parents[3],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0 and f"{name}={value!r}" in done.stderr
    assert earlier.exists()
