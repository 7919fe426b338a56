"""Build the CPU op with AddressSanitizer and UBSan, and run its tests with it.

    make sanitize

The build is in build/sanitize; the installed op does not change. TensorFlow itself is not
instrumented: the sanitizers check every memory access of the op's code, and every allocation,
including TensorFlow's. First, two small libraries with known errors test the detection. Writes
benchmarks/results/DATE-sanitizers.md; exits with status 1 if there are errors.
"""

import ctypes
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import report

FOLDER = report.ROOT / "build" / "sanitize"
# Three checks for null pointers are disabled, because with them some constant expressions in
# TensorFlow's headers are no longer constant. AddressSanitizer detects null pointers anyway.
FLAGS = (
    "-fsanitize=address,undefined -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute "
    "-fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
).split()
TESTS = ["ops/test_kernels.py", "ops/test_ops.py", "test_fuzz_arguments.py"]
TESTS += ["aggregation/test_fuzz_gradients.py"]
# These tests run workers in one process over UCX. They are skipped if UCX cannot be opened.
TESTS += ["transport/test_collectives.py", "transport/test_fused.py"]
CHOSEN = "((cpu or custom) and not tensorflow) or transport"
CONTROLS = {
    "AddressSanitizer": (
        'extern "C" int f(int n) { int *p = new int[4]; int v = p[n]; delete[] p; return v; }'
    ),
    "runtime error: signed integer overflow": 'extern "C" int f(int n) { return 2147483647 + n; }',
}
SECONDS = 1800


def compiler():
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
    subprocess.run(command, cwd=report.ROOT, env=os.environ | settings, check=True, timeout=SECONDS)
    (folder,) = FOLDER.glob("lib*")
    return folder


def run_tests(folder):
    """Return pytest's exit status, its output, and the seconds."""
    tests = [str(report.ROOT / "tests" / "unit" / name) for name in TESTS]
    options = ["-q", "-p", "no:cacheprovider", "-k", CHOSEN]
    start = time.monotonic()
    ended = subprocess.run(
        [str(pathlib.Path(sys.executable).with_name("pytest")), *options, *tests],
        cwd=folder,  # not the source folder, which has the installed op
        env=environment() | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return ended.returncode, ended.stdout, time.monotonic() - start


def main():
    if sys.argv[1:2] == ["--call"]:
        ctypes.CDLL(sys.argv[2]).f(4)
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    check_controls()
    folder = build()
    code, output, seconds = run_tests(folder)
    print(output)
    findings = re.findall(r"ERROR: AddressSanitizer.*|runtime error:.*", output)
    version = subprocess.check_output([*compiler(), "--version"], text=True).splitlines()[0]
    symbols = subprocess.check_output(
        ["nm", "-D", *map(str, folder.glob("tf_adasum/ops/_adasum_ops*.so"))], text=True
    )
    checks = len(set(re.findall(r"__(?:asan|ubsan)\w+", symbols)))
    body = (
        f"Compiler: {version}. Flags: `{' '.join(FLAGS)}`. The op refers to {checks} functions of "
        "the sanitizers; a read behind an array and an overflow of an int, in libraries of their "
        "own, are found.\n\n"
        f"Tests: `{' '.join(TESTS)}`, of them `{CHOSEN}`: "
        f"{output.strip().splitlines()[-1].strip('= ')}; {seconds:.0f} s in all.\n\n"
        f"Found: {len(findings)}." + "".join(f"\n* `{finding}`" for finding in findings)
    )
    report.write("sanitizers", "The CPU op under AddressSanitizer and UBSan", body)
    return 1 if findings or code else 0


if __name__ == "__main__":
    sys.exit(main())
