"""Finding and calling a CUDA compiler, with stand-ins: none of it needs CUDA."""

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
        ("#!/bin/sh\n", None, "is it nvcc"),
        (NVCC.replace("*)", '*) echo "k.cu(3): error" >&2; exit 1'), None, r"k.cu\(3\): error"),
        (NVCC, "70;80", r"does not know the architectures \[70\]"),
        (NVCC, "sm_80", "such as '80;90'"),
        (NVCC, ";", "such as '80;90'"),
    ],
    ids=["no compiler", "no nvcc", "failing nvcc", "old GPU", "sm_80", "no number"],
)
def test_compilations_that_fail(nowhere, tmp_path, monkeypatch, text, architectures, message):
    if text:
        monkeypatch.setenv("NVCC", program(nowhere / "nvcc", text))
    if architectures:
        monkeypatch.setenv("ADASUM_CUDA_ARCHS", architectures)
    with pytest.raises(build_cuda.NotBuilt, match=message):
        build_cuda.compile_kernels(tmp_path)


@pytest.mark.parametrize(
    ("architectures", "joiner", "message"),
    [
        (None, None, "no GPU was found"),
        (None, "libnvfatbin.so", "no GPU was found"),
        ([80, 90], None, "NVRTC alone compiles for one .* install nvFatbin"),
    ],
)
def test_nvrtc_alone_needs_one_architecture(tmp_path, architectures, joiner, message, monkeypatch):
    monkeypatch.setattr(build_cuda, "first_gpu", lambda: None)
    with pytest.raises(build_cuda.NotBuilt, match=message):
        build_cuda.compile_with_nvrtc("libnvrtc.so", joiner, tmp_path / "kernels", architectures)


# NVRTC and nvFatbin, of which the one writes what it was asked for, and the other a list of that.
NVIDIA = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static char code[4000], all[4000];
const char* nvrtcGetErrorString(int error) { return error == 6 ? "COMPILATION" : "?"; }
int nvrtcVersion(int* major, int* minor) { *major = 12; *minor = 9; return 0; }
int nvrtcCreateProgram(void** program, const char* text, const char* name, int n, void* h,
                       void* i) {
  *program = code;
  return strstr(text, "__global__") && !strcmp(name, "kernels.cu") ? 0 : 3;
}
int nvrtcCompileProgram(void* program, int count, const char** options) {
  strcpy(code, options[0]);
  return strcmp(options[0], "-arch=sm_99") ? 0 : 6;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) { *size = 12; return 0; }
int nvrtcGetProgramLog(void* program, char* log) { strcpy(log, "no such GPU"); return 0; }
int nvrtcGetCUBINSize(void* program, size_t* size) { *size = strlen(code) + 1; return 0; }
int nvrtcGetCUBIN(void* program, char* out) { strcpy(out, code); return 0; }
int nvrtcGetPTXSize(void* program, size_t* size) { *size = strlen(code) + 1; return 0; }
int nvrtcGetPTX(void* program, char* out) { strcpy(out, code); return 0; }
int nvrtcDestroyProgram(void** program) { return 0; }
const char* nvFatbinGetErrorString(int error) { return "?"; }
int nvFatbinCreate(void** handle, const char** options, size_t count) {
  *handle = all;
  all[0] = 0;
  for (size_t each = 0; each < count; ++each) strcat(strcat(all, options[each]), " ");
  return 0;
}
static int add(const char* what, const char* code, size_t size, const char* arch) {
  if (size != strlen(code) + 1) return 1;
  sprintf(all + strlen(all), "%s %s %s; ", what, code, arch);
  return 0;
}
int nvFatbinAddCubin(void* h, const char* code, size_t size, const char* arch, const char* name) {
  return add("cubin", code, size, arch);
}
int nvFatbinAddPTX(void* h, const char* code, size_t size, const char* arch, const char* name,
                   const char* options) {
  return add("ptx", code, size, arch) || strlen(options);
}
int nvFatbinSize(void* handle, size_t* size) { *size = strlen(all); return 0; }
int nvFatbinGet(void* handle, char* out) { memcpy(out, all, strlen(all)); return 0; }
int nvFatbinDestroy(void** handle) { return 0; }
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folder of PyPI's NVIDIA packages."""
    folder = tmp_path_factory.mktemp("nvidia")
    source = folder / "nvidia.c"
    source.write_text(NVIDIA)
    for name in ("cuda_nvrtc/lib/libnvrtc.so.12", "nvfatbin/lib/libnvfatbin.so.12"):
        library = folder / name
        library.parent.mkdir(parents=True)
        build_cuda.run(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)])
    return folder


def test_nvrtc_and_nvfatbin_make_code_for_all(nvcc, packages, tmp_path):
    how = build_cuda.compile_kernels(tmp_path, packages)
    assert (how["compiler"], how["cuda"], how["translated"]) == ("NVRTC", "12.9", True)
    assert how["architectures"] == [*build_cuda.ARCHITECTURES]
    codes = [f"cubin -arch=sm_{each} {each}; " for each in build_cuda.ARCHITECTURES]
    expected = "-64 -compress=false " + "".join(codes) + "ptx -arch=compute_120 120; "
    assert (tmp_path / build_cuda.KERNELS).read_text() == expected


def test_nvrtc_and_nvfatbin_on_request(nowhere, packages, tmp_path, monkeypatch):
    monkeypatch.setattr(build_cuda, "site_packages", lambda: [packages])
    monkeypatch.setenv("ADASUM_CUDA_ARCHS", "75;70")
    assert build_cuda.compile_kernels(tmp_path)["translated"] is False
    text = (tmp_path / build_cuda.KERNELS).read_text()
    assert text == "-64 -compress=false cubin -arch=sm_70 70; cubin -arch=sm_75 75; "
    monkeypatch.setenv("ADASUM_CUDA_ARCHS", "99")
    with pytest.raises(build_cuda.NotBuilt, match="COMPILATION:\nno such GPU"):
        build_cuda.compile_kernels(tmp_path)


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
