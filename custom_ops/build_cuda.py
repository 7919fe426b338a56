"""Build the CUDA kernels: host code with a C++ compiler, device code with whatever CUDA has.

    python custom_ops/build_cuda.py --out FOLDER

The host code needs no CUDA at all. The device code is compiled by the first of these that is found:

1. nvcc 12 or 13: `NVCC`, then on the PATH, in `CUDA_HOME` or `CUDA_PATH`, in /usr/local/cuda;
2. nvcc of the PyPI packages `nvidia-cuda-nvcc`, `nvidia-nvvm`, `nvidia-cuda-crt` and
   `nvidia-cuda-runtime`, all of version 13.0.*;
3. NVRTC, a part of `tensorflow[and-cuda]`: no toolkit, but code for one architecture only.

`ADASUM_CUDA_ARCHS`, such as "80;90", chooses the architectures (compute capabilities); by default
all that the compiler knows of 70 to 120, and for NVRTC that of the first GPU. nvcc adds code for
the newest one in a form (PTX) that drivers translate for later GPUs. Neither TensorFlow nor a GPU
is needed. setup.py calls the functions below.
"""

import argparse
import ctypes
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "cuda"
HOST_LIBRARY = "_adasum_cuda.so"
KERNELS = "_adasum_kernels.fatbin"
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
FIRST_WITH_TENSOR_CORE_KERNELS = 80
HOST_SOURCES = ("adasum_cuda.cc", "plan.cc", "driver_launcher.cc")
EMULATED_SOURCES = ("adasum_cuda.cc", "plan.cc", "emulation/emulated_launcher.cc")
DEFAULT_HOMES = ("/usr/local/cuda",)
ARCHITECTURES_VARIABLE = "ADASUM_CUDA_ARCHS"
# `dlopen` is in libdl before glibc 2.34, and then in libc, where the linker finds it: old_glibc.h.
OLD_GLIBC_LINK_FLAGS = ("-Wl,--no-as-needed", "-l:libdl.so.2")


class NotBuilt(Exception):
    """The reason why something could not be built."""


def run(command):
    """Run a command; return what it prints."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise NotBuilt(f"cannot run {command[0]!r}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise NotBuilt(f"`{shlex.join(command)}` failed:\n{error.stderr}") from error


# ---- host code -----------------------------------------------------------------------------------


def compile_host(folder, compiler=("g++",), *, flags=("-O2",), emulated=False):
    """Build the library with the C interface in `folder`; return its path.

    It calls the CUDA driver or, for tests, an emulation of a GPU on the CPU.
    """
    library = Path(folder) / HOST_LIBRARY
    sources = [str(SOURCES / name) for name in (EMULATED_SOURCES if emulated else HOST_SOURCES)]
    options = ["-std=c++17", "-fPIC", "-shared", *flags]
    run([*compiler, *options, *sources, "-o", str(library), *OLD_GLIBC_LINK_FLAGS])
    return library


# ---- device code ---------------------------------------------------------------------------------


def site_packages():
    """The folders that hold PyPI's NVIDIA packages, if there are any."""
    folders = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")]
    return [Path(folder) / "nvidia" for folder in dict.fromkeys(folders)]


def find_nvcc():
    """The path of nvcc, or None."""
    if named := os.environ.get("NVCC"):
        if found := shutil.which(named):
            return found
        raise NotBuilt(f"NVCC names no program. Received: NVCC={named!r}")
    if on_path := shutil.which("nvcc"):
        return on_path
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *DEFAULT_HOMES]
    toolkits = [Path(home) for home in homes if home]
    toolkits += [folder / "cu13" for folder in site_packages()]
    # Without cicc it is the `nvcc` package of CUDA 12, which is no compiler.
    complete = [path for path in toolkits if (path / "nvvm/bin/cicc").exists()]
    return next((str(path / "bin/nvcc") for path in complete if (path / "bin/nvcc").exists()), None)


def find_nvrtc():
    """The path of the NVRTC library of a PyPI package, or None."""
    names = ("cuda_nvrtc/lib/libnvrtc.so.12", "cu13/lib/libnvrtc.so.13")
    paths = [folder / name for folder in site_packages() for name in names]
    return next((str(path) for path in paths if path.exists()), None)


def requested_architectures():
    """The architectures that `ADASUM_CUDA_ARCHS` names, or None."""
    text = os.environ.get(ARCHITECTURES_VARIABLE, "")
    if not text.strip():
        return None
    names = [name for name in re.split(r"[;,\s]+", text) if name]
    if not names or not all(re.fullmatch(r"\d{2,3}", name) for name in names):
        raise NotBuilt(
            f"{ARCHITECTURES_VARIABLE} is expected to hold compute capabilities such as '80;90'; "
            f"Received: {ARCHITECTURES_VARIABLE}={text!r}"
        )
    return sorted({int(name) for name in names})


def check_environment():
    """Raise NotBuilt, before anything is built, if the environment asks for what cannot be."""
    requested_architectures()
    if os.environ.get("NVCC"):
        find_nvcc()


def compile_with_nvcc(nvcc, kernels, architectures=None):
    """Build the file `kernels`, with code for all architectures; return how it was built."""
    known = {int(n) for n in re.findall(r"compute_(\d+)\b", run([nvcc, "--list-gpu-arch"]))}
    if not known:
        raise NotBuilt(f"{nvcc} lists no GPU architectures: is it nvcc 12 or 13?")
    if unknown := sorted(set(architectures or ()) - known):
        raise NotBuilt(
            f"{nvcc} does not know the architectures {unknown}; "
            f"Received: {ARCHITECTURES_VARIABLE}={os.environ.get(ARCHITECTURES_VARIABLE)!r}"
        )
    chosen = architectures or [a for a in ARCHITECTURES if a in known]
    code = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in chosen]
    # Kernels without tensor cores are no good on later GPUs.
    if chosen[-1] >= FIRST_WITH_TENSOR_CORE_KERNELS:
        code.append(f"-gencode=arch=compute_{chosen[-1]},code=compute_{chosen[-1]}")
    options = ["-fatbin", "-std=c++17", "-Xfatbin=-compress-all"]
    options += ["--threads", str(os.cpu_count() or 1)]
    run([nvcc, *options, *code, str(SOURCES / "kernels.cu"), "-o", str(kernels)])
    said = run([nvcc, "--version"]).strip()
    release = re.search(r"release (\d+\.\d+)", said)
    return {
        "compiler": "nvcc",
        "compiler_version": said.splitlines()[-1],
        "cuda": release and release[1],
        "architectures": chosen,
    }


def first_gpu():
    """The compute capability of the first GPU, or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    major_attribute, minor_attribute = 75, 76
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), major_attribute, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), minor_attribute, device)
    )
    return None if failed else 10 * major.value + minor.value


def compile_with_nvrtc(nvrtc, kernels, architectures=None):
    """Build the file `kernels`, with code for one architecture; return how it was built."""
    chosen = architectures or [first_gpu()]
    if len(chosen) != 1 or chosen[0] is None:
        raise NotBuilt(
            "NVRTC compiles for one architecture, and there is no GPU to tell which: set "
            f"{ARCHITECTURES_VARIABLE} to one; Received: "
            f"{ARCHITECTURES_VARIABLE}={os.environ.get(ARCHITECTURES_VARIABLE)!r}"
        )
    library = ctypes.CDLL(nvrtc)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(error, program=None):
        if not error:
            return
        message = library.nvrtcGetErrorString(error).decode()
        if program is not None:
            message += ":\n" + text(program, "ProgramLog").decode()
        raise NotBuilt(f"{nvrtc}: {message}")

    def text(program, what):
        size = ctypes.c_size_t()
        check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        check(getattr(library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    source, program = SOURCES / "kernels.cu", ctypes.c_void_p()
    options = [f"-arch=sm_{chosen[0]}", "-std=c++17", f"-I{SOURCES}"]
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None
        )
    )
    check(library.nvrtcCompileProgram(program, len(options), encoded), program)
    Path(kernels).write_bytes(text(program, "CUBIN"))
    major, minor = ctypes.c_int(), ctypes.c_int()
    check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    version = f"{major.value}.{minor.value}"
    return {
        "compiler": "NVRTC",
        "compiler_version": version,
        "cuda": version,
        "architectures": chosen,
    }


def compile_kernels(folder):
    """Build the device code in `folder` with the first compiler found; return how."""
    kernels, architectures = Path(folder) / KERNELS, requested_architectures()
    if nvcc := find_nvcc():
        return compile_with_nvcc(nvcc, kernels, architectures)
    if nvrtc := find_nvrtc():
        return compile_with_nvrtc(nvrtc, kernels, architectures)
    raise NotBuilt(
        "found neither nvcc (NVCC, PATH, CUDA_HOME, /usr/local/cuda, the PyPI package "
        "nvidia-cuda-nvcc 13.0) nor NVRTC (a part of tensorflow[and-cuda])"
    )


def compile_both(folder, compiler):
    """Build host and device code in `folder`; return the two files, and how they were built."""
    files = [compile_host(folder, compiler), Path(folder) / KERNELS]
    description = compile_kernels(folder)
    return files, description | {"bytes": {file.name: file.stat().st_size for file in files}}


def main():
    """Build host and device code in a folder, or the emulation alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for what is built")
    parser.add_argument("--emulated", action="store_true", help="for tests, to run on a CPU")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in (HOST_LIBRARY, KERNELS):  # all of a build, or nothing
        (arguments.out / name).unlink(missing_ok=True)
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    try:
        if not arguments.emulated:
            print(arguments.out / KERNELS, compile_kernels(arguments.out))
        print(compile_host(arguments.out, compiler, emulated=arguments.emulated))
    except NotBuilt as reason:
        sys.exit(f"not built: {reason}")


if __name__ == "__main__":
    main()
