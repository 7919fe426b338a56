"""Finding and calling a CUDA compiler, with stand-ins: none of it needs CUDA."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.cuda_library import build_cuda

pytestmark = pytest.mark.one_stack

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


def arguments_of(nvcc):
    return Path(f"{nvcc}.arguments").read_text().split()


def test_without_a_compiler_the_error_lists_where_it_looked(nowhere):
    with pytest.raises(build_cuda.NotBuilt, match=r"neither nvcc.*nor NVRTC"):
        build_cuda.compile_kernels(nowhere)


def test_nvcc_is_looked_for_in_the_documented_order(nowhere, monkeypatch):
    package = program(nowhere / "site/nvidia/cu13/bin/nvcc")
    assert build_cuda.find_nvcc() is None, "that package alone is no compiler"
    program(nowhere / "site/nvidia/cu13/nvvm/bin/cicc")
    assert build_cuda.find_nvcc() == package
    home = program(nowhere / "home/bin/nvcc")
    program(nowhere / "home/nvvm/bin/cicc")
    monkeypatch.setenv("CUDA_HOME", str(nowhere / "home"))
    assert build_cuda.find_nvcc() == home
    on_path = program(nowhere / "bin/nvcc")
    assert build_cuda.find_nvcc() == on_path
    named = program(nowhere / "elsewhere/my-nvcc")
    monkeypatch.setenv("NVCC", named)
    assert build_cuda.find_nvcc() == named
    monkeypatch.setenv("NVCC", str(nowhere / "missing"))
    with pytest.raises(build_cuda.NotBuilt, match="NVCC names no program"):
        build_cuda.find_nvcc()


def test_by_default_all_architectures_that_nvcc_knows(nvcc, tmp_path):
    how = build_cuda.compile_kernels(tmp_path)
    assert how["architectures"] == [75, 80, 90]
    assert how["compiler_version"] == "Build stand-in" and how["cuda"] == "12.9"
    generated = [a for a in arguments_of(nvcc) if a.startswith("-gencode")]
    assert generated == [
        "-gencode=arch=compute_75,code=sm_75",
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]
    assert (tmp_path / build_cuda.KERNELS).read_text() == "code\n"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("90", ["sm_90", "compute_90"]),
        ("80;75", ["sm_75", "sm_80", "compute_80"]),
        ("75", ["sm_75"]),
    ],
)
def test_chosen_architectures(nvcc, tmp_path, monkeypatch, text, codes):
    monkeypatch.setenv("ADASUM_CUDA_ARCHS", text)
    build_cuda.compile_kernels(tmp_path)
    generated = [a.split(",code=")[1] for a in arguments_of(nvcc) if a.startswith("-gencode")]
    assert generated == codes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("70;80", r"does not know the architectures \[70\]"),
        ("sm_80", "such as '80;90'"),
        (";", "such as '80;90'"),
    ],
)
def test_architectures_that_cannot_be(nvcc, tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("ADASUM_CUDA_ARCHS", text)
    with pytest.raises(build_cuda.NotBuilt, match=message):
        build_cuda.compile_kernels(tmp_path)


def test_a_compiler_that_fails_is_quoted(nowhere, tmp_path, monkeypatch):
    failing = NVCC.replace("*)", '*) echo "kernels.cu(3): error" >&2; exit 1')
    monkeypatch.setenv("NVCC", program(nowhere / "nvcc", failing))
    with pytest.raises(build_cuda.NotBuilt, match=r"kernels.cu\(3\): error"):
        build_cuda.compile_kernels(tmp_path)


@pytest.mark.parametrize("architectures", [None, [80, 90]])
def test_nvrtc_needs_one_architecture(tmp_path, architectures, monkeypatch):
    monkeypatch.setattr(build_cuda, "first_gpu", lambda: None)
    with pytest.raises(build_cuda.NotBuilt, match="NVRTC compiles for one architecture"):
        build_cuda.compile_with_nvrtc("libnvrtc.so", tmp_path / "kernels", architectures)


def test_a_program_that_is_no_nvcc(nowhere, monkeypatch):
    monkeypatch.setenv("NVCC", program(nowhere / "true", "#!/bin/sh\n"))
    with pytest.raises(build_cuda.NotBuilt, match="is it nvcc"):
        build_cuda.compile_kernels(nowhere)


@pytest.mark.parametrize(
    ("name", "value"), [("TF_ADASUM_CUDA", "yes"), ("ADASUM_CUDA_ARCHS", "abc"), ("NVCC", "/none")]
)
def test_setup_refuses_what_cannot_be_before_it_touches_a_build(tmp_path, name, value):
    earlier = tmp_path / "tf_adasum/ops/_adasum_ops_tf2.21.so"
    earlier.parent.mkdir(parents=True)
    earlier.write_text("an earlier build")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path)],
        cwd=root,
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert f"{name}={value!r}" in done.stderr
    assert earlier.exists()
