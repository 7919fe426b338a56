"""Build the CUDA kernels: host code with a C++ compiler, device code with nvcc or NVRTC.

    python custom_ops/build_cuda.py --out FOLDER

Building the host code does not need CUDA. The device code is compiled with the first compiler that
is found:

1. nvcc 12 or 13: the program in `NVCC`, or nvcc on the PATH, in `CUDA_HOME` or `CUDA_PATH`, or in
   /usr/local/cuda;
2. nvcc of the PyPI packages `nvidia-cuda-nvcc`, `nvidia-nvvm`, `nvidia-cuda-crt` and
   `nvidia-cuda-runtime`, all of version 13.0.*;
3. NVRTC, a part of `tensorflow[and-cuda]`. It needs no CUDA toolkit, but it builds code for only
   one architecture, unless the PyPI package `nvidia-nvfatbin-cu12` is also installed.

`ADASUM_CUDA_ARCHS`, such as "80;90", selects the architectures (compute capabilities). The default
is all architectures from 70 to 120 that the compiler supports, or with NVRTC the architecture of
the first GPU. The build also contains PTX of the newest architecture, which drivers translate for
later GPUs, except if only NVRTC is installed. Neither TensorFlow nor a GPU is needed. setup.py and
build_wheels.py call the functions below. build_wheels.py uses NVRTC for all architectures.
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
# Before glibc 2.34, `dlopen` is in libdl; since then, the linker finds it in libc. These flags link
# libdl in any case, so that the library also loads with an older glibc. See old_glibc.h.
OLD_GLIBC_LINK_FLAGS = ("-Wl,--no-as-needed", "-l:libdl.so.2")


class NotBuilt(Exception):
    """The reason why something could not be built."""


def run(command):
    """Run a command; return its standard output."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise NotBuilt(f"cannot run {command[0]!r}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise NotBuilt(f"`{shlex.join(command)}` failed:\n{error.stderr}") from error


def digest(file):
    """Return the SHA-256 digest of a file."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


# ---- host code -----------------------------------------------------------------------------------


def compile_host(folder, compiler=("g++",), *, flags=("-O2",), emulated=False):
    """Build the library with the C interface in `folder`; return its path.

    The library calls the CUDA driver. With `emulated`, it calls an emulation of a GPU on the CPU
    instead, for tests.
    """
    library = Path(folder) / HOST_LIBRARY
    sources = [str(SOURCES / name) for name in (EMULATED_SOURCES if emulated else HOST_SOURCES)]
    options = ["-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", *flags]
    run([*compiler, *options, *sources, "-o", str(library), *OLD_GLIBC_LINK_FLAGS])
    return library


# ---- device code ---------------------------------------------------------------------------------


def site_packages():
    """Return the folders that hold NVIDIA's PyPI packages if they are installed."""
    folders = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")]
    return [Path(folder) / "nvidia" for folder in dict.fromkeys(folders)]


def find_nvcc():
    """Return the path of nvcc, or None."""
    if named := os.environ.get("NVCC"):
        if found := shutil.which(named):
            return found
        raise NotBuilt(f"NVCC names no program. Received: NVCC={named!r}")
    if on_path := shutil.which("nvcc"):
        return on_path
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *DEFAULT_HOMES]
    toolkits = [Path(home) for home in homes if home]
    toolkits += [folder / "cu13" for folder in site_packages()]
    # Without cicc, the folder belongs to the `nvcc` package of CUDA 12, which cannot compile.
    complete = [path for path in toolkits if (path / "nvvm/bin/cicc").exists()]
    return next((str(path / "bin/nvcc") for path in complete if (path / "bin/nvcc").exists()), None)


def find_nvrtc(folders):
    """Return the paths of NVRTC and of nvFatbin (None if missing), or None without NVRTC."""
    for folder in folders:
        for nvrtc, nvfatbin in (
            (folder / "cuda_nvrtc/lib/libnvrtc.so.12", folder / "nvfatbin/lib/libnvfatbin.so.12"),
            (folder / "cu13/lib/libnvrtc.so.13", folder / "cu13/lib/libnvfatbin.so.13"),
        ):
            if nvrtc.exists():
                return str(nvrtc), str(nvfatbin) if nvfatbin.exists() else None
    return None


def requested_architectures():
    """Return the architectures in `ADASUM_CUDA_ARCHS`, or None if it is empty."""
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
    """Raise NotBuilt, before anything is built, if an environment variable has an invalid value."""
    requested_architectures()
    if os.environ.get("NVCC"):
        find_nvcc()


def compile_with_nvcc(nvcc, kernels, architectures=None):
    """Build the file `kernels` for all architectures; return a description of the build."""
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
    # PTX for an older architecture lacks the kernels that later GPUs use.
    translated = chosen[-1] >= FIRST_WITH_TENSOR_CORE_KERNELS
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
    """Return the compute capability of the first GPU, or None."""
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
    """Build the file `kernels` for all architectures; return a description of the build.

    Without nvFatbin, the file has code for only one architecture.
    """
    chosen = architectures or [first_gpu()]
    if chosen == [None]:
        raise NotBuilt(
            f"no GPU was found, so the architecture is unknown: set {ARCHITECTURES_VARIABLE}; "
            f"Received: {ARCHITECTURES_VARIABLE}={os.environ.get(ARCHITECTURES_VARIABLE)!r}"
        )
    if nvfatbin is None and len(chosen) > 1:
        raise NotBuilt(
            "NVRTC alone compiles for one architecture only: for several, install nvFatbin, the "
            "PyPI package nvidia-nvfatbin-cu12; "
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
        # Use several processes, because NVRTC compiles one program at a time in a process.
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
    """A library whose functions have a common prefix, and return 0 or an error number."""

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
        """Return the bytes that the function `name` writes; `size_name` returns their number."""
        size = ctypes.c_size_t()
        self.call(size_name, handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(name, handle, buffer)
        return buffer.raw


def _code_by_nvrtc(nvrtc, what, architecture):
    """Compile the kernels to "CUBIN" for an architecture, or to "PTX" for later architectures."""
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
    """Return one file with code for several architectures, from which the driver selects."""
    joiner, handle = _NvidiaLibrary(nvfatbin, "nvFatbin"), ctypes.c_void_p()
    # Drivers older than the compiler may not support its compression.
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
    """Build the device code in `folder`; return a description of the build.

    Args:
        folder: the output folder.
        packages: a folder of NVIDIA's PyPI packages. Their NVRTC compiles for all architectures.
            Defaults to None: use the first compiler that is found.
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
    """Build host and device code in `folder`; return the two files and a description."""
    files = [compile_host(folder, compiler), Path(folder) / KERNELS]
    description = compile_kernels(folder, packages)
    return files, description | {"sha256": {file.name: digest(file) for file in files}}


def main():
    """Build host and device code in a folder, or only the emulation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for what is built")
    parser.add_argument("--emulated", action="store_true", help="for tests, to run on a CPU")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in (HOST_LIBRARY, KERNELS):  # a failed build leaves no files
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
