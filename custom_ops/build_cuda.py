"""Build the CUDA kernels: host code with a C++ compiler, device code with whatever CUDA has.

    python custom_ops/build_cuda.py --out FOLDER

The host code needs no CUDA at all. The device code is compiled by the first of these that is found:

1. nvcc 12 or 13: `NVCC`, then on the PATH, in `CUDA_HOME` or `CUDA_PATH`, in /usr/local/cuda;
2. nvcc of the PyPI packages `nvidia-cuda-nvcc`, `nvidia-nvvm`, `nvidia-cuda-crt` and
   `nvidia-cuda-runtime`, all of version 13.0.*;
3. NVRTC, a part of `tensorflow[and-cuda]`: no toolkit, but code for one architecture only, unless
   the PyPI package `nvidia-nvfatbin-cu12` is there, too.

`ADASUM_CUDA_ARCHS`, such as "80;90", chooses the architectures (compute capabilities); by default
all that the compiler knows of 70 to 120, and for NVRTC that of the first GPU. Code for the newest
one is added in a form (PTX) that drivers translate for later GPUs, but by NVRTC alone. Neither
TensorFlow nor a GPU is needed. setup.py calls the functions below, and build_wheels.py, which takes
NVRTC for all architectures.
"""

import argparse
import ctypes
import functools
import hashlib
import multiprocessing
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from concurrent.futures import ProcessPoolExecutor
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


def digest(file):
    """What tells a file from any other, and from itself when it was damaged."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


# ---- host code -----------------------------------------------------------------------------------


def compile_host(folder, compiler=("g++",), *, flags=("-O2",), emulated=False):
    """Build the library with the C interface in `folder`; return its path.

    It calls the CUDA driver or, for tests, an emulation of a GPU on the CPU.
    """
    library = Path(folder) / HOST_LIBRARY
    sources = [str(SOURCES / name) for name in (EMULATED_SOURCES if emulated else HOST_SOURCES)]
    options = ["-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", *flags]
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


def find_nvrtc(folders):
    """The paths of the NVRTC library and of nvFatbin, of PyPI's packages in folders, or None."""
    for folder in folders:
        for nvrtc, nvfatbin in (
            (folder / "cuda_nvrtc/lib/libnvrtc.so.12", folder / "nvfatbin/lib/libnvfatbin.so.12"),
            (folder / "cu13/lib/libnvrtc.so.13", folder / "cu13/lib/libnvfatbin.so.13"),
        ):
            if nvrtc.exists():
                return str(nvrtc), str(nvfatbin) if nvfatbin.exists() else None
    return None


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
    translated = chosen[-1] >= FIRST_WITH_TENSOR_CORE_KERNELS  # others are no good on later GPUs
    if translated:
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
        "translated": translated,
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


def compile_with_nvrtc(nvrtc, nvfatbin, kernels, architectures=None):
    """Build the file `kernels`, with code for all architectures; return how it was built.

    Without nvFatbin it is the code for one architecture.
    """
    chosen = architectures or [first_gpu()]
    if chosen == [None]:
        raise NotBuilt(
            f"there is no GPU to tell for which architecture: set {ARCHITECTURES_VARIABLE}; "
            f"Received: {ARCHITECTURES_VARIABLE}={os.environ.get(ARCHITECTURES_VARIABLE)!r}"
        )
    if nvfatbin is None and len(chosen) > 1:
        raise NotBuilt(
            "NVRTC compiles for one architecture, and nvFatbin, of the PyPI package "
            "nvidia-nvfatbin-cu12, which would join several, is not there; "
            f"Received: {ARCHITECTURES_VARIABLE}={os.environ.get(ARCHITECTURES_VARIABLE)!r}"
        )
    if nvfatbin is None:
        Path(kernels).write_bytes(_code_by_nvrtc(nvrtc, "CUBIN", chosen[0]))
        translated = False
    else:
        wanted = [("CUBIN", architecture) for architecture in chosen]
        translated = chosen[-1] >= FIRST_WITH_TENSOR_CORE_KERNELS
        if translated:
            wanted.append(("PTX", chosen[-1]))
        # In processes: within one, NVRTC compiles one program at a time.
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(os.cpu_count(), context) as pool:
            compiled = functools.partial(_code_by_nvrtc, nvrtc)
            codes = list(pool.map(compiled, *zip(*wanted, strict=True)))
        Path(kernels).write_bytes(_joined(nvfatbin, wanted, codes))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _NvidiaLibrary(nvrtc, "nvrtc").call("Version", ctypes.byref(major), ctypes.byref(minor))
    version = f"{major.value}.{minor.value}"
    return {
        "compiler": "NVRTC",
        "compiler_version": version,
        "cuda": version,
        "architectures": chosen,
        "translated": translated,
    }


class _NvidiaLibrary:
    """A library whose functions have a common prefix, and return 0 or the number of an error."""

    def __init__(self, path, prefix):
        self._library, self._path, self._prefix = ctypes.CDLL(path), path, prefix
        self._function("GetErrorString").restype = ctypes.c_char_p

    def _function(self, name):
        return getattr(self._library, self._prefix + name)

    def call(self, name, *arguments, log=lambda: ""):
        """Call a function; raise NotBuilt if it fails, with the log."""
        if error := self._function(name)(*arguments):
            message = self._function("GetErrorString")(error).decode()
            raise NotBuilt(f"{self._path}: {name}: {message}{log()}")

    def bytes_of(self, name, handle, size_name):
        """What a function writes, whose size another one tells."""
        size = ctypes.c_size_t()
        self.call(size_name, handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(name, handle, buffer)
        return buffer.raw


def _code_by_nvrtc(nvrtc, what, architecture):
    """The code of the kernels: "CUBIN" for an architecture, or "PTX" to be translated for later."""
    compiler = _NvidiaLibrary(nvrtc, "nvrtc")
    target = f"sm_{architecture}" if what == "CUBIN" else f"compute_{architecture}"
    source, program = SOURCES / "kernels.cu", ctypes.c_void_p()
    options = [f"-arch={target}", "-std=c++17", f"-I{SOURCES}"]
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    text, name = source.read_bytes(), source.name.encode()
    compiler.call("CreateProgram", ctypes.byref(program), text, name, 0, None, None)
    try:

        def log():
            return ":\n" + compiler.bytes_of("GetProgramLog", program, "GetProgramLogSize").decode()

        compiler.call("CompileProgram", program, len(options), encoded, log=log)
        return compiler.bytes_of(f"Get{what}", program, f"Get{what}Size")
    finally:
        compiler.call("DestroyProgram", ctypes.byref(program))


def _joined(nvfatbin, wanted, codes):
    """One file of codes for several architectures, which drivers choose from."""
    joiner, handle = _NvidiaLibrary(nvfatbin, "nvFatbin"), ctypes.c_void_p()
    # Drivers older than the compiler may not know its compression.
    options = (ctypes.c_char_p * 2)(b"-64", b"-compress=false")
    joiner.call("Create", ctypes.byref(handle), options, ctypes.c_size_t(len(options)))
    try:
        for (what, architecture), code in zip(wanted, codes, strict=True):
            arguments = (code, ctypes.c_size_t(len(code)), str(architecture).encode(), b"kernels")
            if what == "CUBIN":
                joiner.call("AddCubin", handle, *arguments)
            else:
                joiner.call("AddPTX", handle, *arguments, b"")
        return joiner.bytes_of("Get", handle, "Size")
    finally:
        joiner.call("Destroy", ctypes.byref(handle))


def compile_kernels(folder, packages=None):
    """Build the device code in `folder`; return how.

    Args:
        folder: what it is built in.
        packages: the folder of PyPI's NVIDIA packages whose NVRTC is to compile for all
            architectures. Defaults to None: the first compiler found.
    """
    kernels, architectures = Path(folder) / KERNELS, requested_architectures()
    if packages and (found := find_nvrtc([Path(packages)])):
        return compile_with_nvrtc(*found, kernels, architectures or [*ARCHITECTURES])
    if packages is None and (nvcc := find_nvcc()):
        return compile_with_nvcc(nvcc, kernels, architectures)
    if packages is None and (found := find_nvrtc(site_packages())):
        return compile_with_nvrtc(*found, kernels, architectures)
    raise NotBuilt(
        "found neither nvcc (NVCC, PATH, CUDA_HOME, /usr/local/cuda, the PyPI package "
        "nvidia-cuda-nvcc 13.0) nor NVRTC (a part of tensorflow[and-cuda])"
    )


def compile_both(folder, compiler, packages=None):
    """Build host and device code in `folder`; return the two files, and how they were built."""
    files = [compile_host(folder, compiler), Path(folder) / KERNELS]
    description = compile_kernels(folder, packages)
    return files, description | {"sha256": {file.name: digest(file) for file in files}}


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
