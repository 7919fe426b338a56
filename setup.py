"""Build the package and its compiled op. All other metadata is in pyproject.toml.

The op is compiled against the installed TensorFlow. It makes tf_adasum faster, but nothing depends
on it. If it cannot be built, the installation therefore still succeeds and prints what is missing;
`TF_ADASUM_REQUIRE_OP=1` makes this an error. `CXX` names the compiler (default: g++).

The kernels for NVIDIA GPUs are also built if TensorFlow supports GPUs and a CUDA compiler is found;
see custom_ops/build_cuda.py. With `TF_ADASUM_CUDA=1`, they are always built, and the installation
fails if this is not possible; with `0`, they are never built.

`TF_ADASUM_PREBUILT=FOLDER` copies libraries that were built before; see custom_ops/build_wheels.py.
"""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import setuptools

if int(setuptools.__version__.split(".")[0]) < 77:  # pip without isolation ignores `requires`
    raise SystemExit(
        "tf_adasum needs setuptools 77 or newer to be installed. Run: "
        "pip install --upgrade pip 'setuptools>=77' "
        f"Received: setuptools {setuptools.__version__}"
    )

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "custom_ops"))
import build_cuda
import build_op
from build_cuda import NotBuilt
from pypi_description import pypi_description

OPS = Path("tf_adasum/ops")
BUILD_INFO = "_build_info.json"
# Commands that build the op later: for an editable installation, and for an installed copy.
BUILD_IN_PLACE = f"{Path(sys.executable).name} setup.py build_ext --inplace"
INSTALL_AGAIN = "pip install --no-build-isolation --no-deps --force-reinstall ."
SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".py")
SOURCES = sorted(str(path) for path in Path("custom_ops").rglob("*.*") if path.suffix in SUFFIXES)


def cuda_choice():
    choice = os.environ.get("TF_ADASUM_CUDA") or "auto"
    if choice not in ("auto", "0", "1"):
        raise SystemExit(
            "tf_adasum: the environment variable TF_ADASUM_CUDA is expected to be auto, 0 or 1; "
            f"Received: TF_ADASUM_CUDA={choice!r}"
        )
    try:
        build_cuda.check_environment()
    except NotBuilt as reason:
        raise SystemExit(f"tf_adasum: {reason}") from reason
    return choice


def compile_cuda(scratch, choice):
    """Compile the kernels for GPUs in `scratch`; return the files and a description.

    If the kernels are not built, there are no files, and the description has the reason.
    """
    try:
        if choice == "0":
            raise NotBuilt("TF_ADASUM_CUDA=0")
        if choice == "auto" and not build_op.import_tensorflow().test.is_built_with_cuda():
            raise NotBuilt("this TensorFlow cannot use NVIDIA GPUs")
        return build_cuda.compile_both(scratch, shlex.split(os.environ.get("CXX") or "g++"))
    except NotBuilt as reason:
        if choice == "1":
            raise SystemExit(f"tf_adasum: the CUDA kernels were not built: {reason}") from reason
        return [], {"not_built": str(reason)}


def products(folder):
    """Return the files of a build that exist in a folder."""
    names = ("_adasum_ops*.so", build_cuda.HOST_LIBRARY, build_cuda.KERNELS, BUILD_INFO)
    return sorted(path for name in names for path in folder.glob(name))


class BuildOp(build_ext):
    """Compile the op. Afterwards, a library and its description exist, or neither of them."""

    def get_ext_filename(self, fullname):
        # TensorFlow loads the library, not Python, so its name has no `.cpython-311-…`.
        return os.path.join(*fullname.split(".")) + ".so"

    def get_source_files(self):
        return SOURCES

    def get_outputs(self):
        return [str(path) for path in products(Path(self.build_lib) / OPS)]

    def get_output_mapping(self):
        built = Path(self.build_lib) / OPS
        return {str(built / path.name): str(path) for path in products(OPS) if self.inplace}

    def run(self):
        cuda_wanted = cuda_choice()
        folder = (Path() if self.inplace else Path(self.build_lib)) / OPS
        # Remove the files of an earlier build, even if this build fails.
        for product in products(folder):
            product.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        if prebuilt := os.environ.get("TF_ADASUM_PREBUILT"):
            for file in products(Path(prebuilt)):
                shutil.copy2(file, folder)
            return
        scratch = Path(self.build_temp)
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            minor, library, description = build_op.compile_op(scratch)
        except NotBuilt as reason:
            if os.environ.get("TF_ADASUM_REQUIRE_OP") == "1":
                raise SystemExit(f"tf_adasum: the compiled op was not built: {reason}") from reason
            print(
                f"tf_adasum: the compiled op was NOT built: {reason}\n"
                "tf_adasum works without it, on slower stock TensorFlow operations. To build it "
                "later, run in the source folder:\n"
                f"    {BUILD_IN_PLACE if self.inplace else INSTALL_AGAIN}",
                file=sys.stderr,
            )
            return
        cuda_files, cuda = compile_cuda(scratch, cuda_wanted)
        for file in (library, *cuda_files):
            shutil.copy2(file, folder)
        build_info = {"libraries": {minor: description}, "cuda": cuda}
        (folder / BUILD_INFO).write_text(json.dumps(build_info, indent=2) + "\n")
        why_not, no_ucx = cuda.get("not_built"), description["ucx"].get("not_built")
        print(
            f"tf_adasum: built the compiled op for TensorFlow {minor}; "
            + (f"no collectives over UCX: {no_ucx}; " if no_ucx else "collectives over UCX; ")
            + (f"no CUDA kernels: {why_not}" if why_not else f"CUDA kernels: {cuda}")
        )


class WithAnswers(build_py):
    """Copy the troubleshooting page to the doctor, which reads it; a clone has it in docs/."""

    def run(self):
        super().run()
        if not self.editable_mode:
            shutil.copy2("docs/troubleshooting.md", Path(self.build_lib) / "tf_adasum/doctor")


class Wheel(bdist_wheel):
    """A wheel for one platform and every Python, because TensorFlow loads the libraries."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    # The Extension makes wheels platform-specific and `build_ext` part of every installation.
    ext_modules=[Extension("tf_adasum.ops._adasum_ops", build_op.SOURCES)],
    cmdclass={"build_py": WithAnswers, "build_ext": BuildOp, "bdist_wheel": Wheel},
    long_description=pypi_description(),
    long_description_content_type="text/markdown",
)
