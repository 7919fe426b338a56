"""Run the tests of the CPU op, and of the emulated CUDA kernels, with AddressSanitizer and UBSan.

    make sanitize

The build is in build/sanitize; the installed op does not change. TensorFlow itself is not
instrumented: the sanitizers check every memory access of the op's code, and every allocation,
including TensorFlow's. First, two small libraries with known errors test the detection. Exits
with status 1 if there are errors.
"""

import ctypes
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sanitize"
# Three checks for null pointers are disabled, because with them some constant expressions in
# TensorFlow's headers are no longer constant. AddressSanitizer detects null pointers anyway.
FLAGS = (
    "-fsanitize=address,undefined -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute "
    "-fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
).split()
TESTS = ["ops/test_kernels.py", "ops/test_ops.py"]
TESTS += ["aggregation/test_rules.py"]
# These tests run workers in one process over UCX. They are skipped if UCX cannot be opened.
TESTS += ["transport/test_collectives.py", "transport/test_fused.py"]
# The CUDA kernels, which an emulation runs on the CPU.
TESTS += ["ops/test_cuda_kernels.py"]
CHOSEN = "((cpu or custom) and not tensorflow) or transport or cuda"
CONTROLS = {
    "AddressSanitizer": (
        'extern "C" int f(int n) { int *p = new int[4]; int v = p[n]; delete[] p; return v; }'
    ),
    "runtime error: signed integer overflow": 'extern "C" int f(int n) { return 2147483647 + n; }',
}
SECONDS = 1800


def compiler():
    """Return the command of the C++ compiler."""
    return shlex.split(os.environ.get("CXX") or "g++")


def environment():
    """Return the environment in which a normal Python can load an instrumented library."""
    libraries = [
        subprocess.check_output([*compiler(), f"-print-file-name={name}.so"], text=True).strip()
        for name in ("libasan", "libubsan")
    ]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python and TensorFlow exit without freeing all memory.
        "ASAN_OPTIONS": "detect_leaks=0,detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TF_ADASUM_OPS": "custom",
        "ADASUM_EMULATION_FLAGS": shlex.join(["-O1", "-w", *FLAGS]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def check_controls():
    """Check that the sanitizers detect known errors."""
    for number, (message, source) in enumerate(CONTROLS.items()):
        library = FOLDER / f"control{number}.so"
        command = [*compiler(), *FLAGS, "-fPIC", "-shared", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=source, text=True, check=True)
        call = [sys.executable, __file__, "--call", str(library)]
        ended = subprocess.run(call, env=environment(), capture_output=True, text=True, timeout=60)
        if ended.returncode == 0 or message not in ended.stderr:
            raise SystemExit(f"The sanitizers missed a known error: {message}. {ended.stderr}")


def build():
    """Compile the package with the instrumented op; return the folder to import it from."""
    flags = [*compiler(), "-w", *FLAGS]
    settings = {"CXX": shlex.join(flags), "TF_ADASUM_CUDA": "0", "TF_ADASUM_REQUIRE_OP": "1"}
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build", "--build-base", FOLDER]
    subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=True, timeout=SECONDS)
    (folder,) = FOLDER.glob("lib*")
    return folder


def run_tests(folder):
    """Return pytest's exit status."""
    tests = [str(ROOT / "tests" / "unit" / name) for name in TESTS]
    options = ["-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    return subprocess.run(
        [str(pathlib.Path(sys.executable).with_name("pytest")), *options, *tests],
        cwd=folder,  # not the source folder, which has the installed op
        env=environment() | {"PYTHONPATH": str(folder)},
        timeout=SECONDS,
    ).returncode


def main():
    """Check the sanitizers, build the op, and return the exit status of its tests."""
    if sys.argv[1:2] == ["--call"]:
        ctypes.CDLL(sys.argv[2]).f(4)
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    check_controls()
    return run_tests(build())


if __name__ == "__main__":
    sys.exit(main())
