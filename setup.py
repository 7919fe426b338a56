"""Build the compiled op against the installed TensorFlow. All metadata is in pyproject.toml.

The op speeds tf_adasum up; nothing depends on it. Where it cannot be built the installation
therefore still succeeds and says what is missing. `TF_ADASUM_REQUIRE_OP=1` makes that an error,
`CXX` names the compiler (default: g++).

The kernels for NVIDIA GPUs are built too if TensorFlow can use GPUs and a CUDA compiler is found;
see custom_ops/build_cuda.py. `TF_ADASUM_CUDA=1` builds them in any case, or fails; `0` never does.
"""

import json
import os
import platform
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "custom_ops"))
import build_cuda
from build_cuda import NotBuilt, run

LIBRARY = "tf_adasum.ops._adasum_ops"
BUILD_INFO = "_build_info.json"
# The two commands that build the op later: for a source folder in use, and for an installed copy.
BUILD_IN_PLACE = f"{Path(sys.executable).name} setup.py build_ext --inplace"
INSTALL_AGAIN = "pip install --no-build-isolation --no-deps --force-reinstall ."
OP_FOLDERS = (Path("custom_ops/tensorflow"), Path("custom_ops/cpu"))
SOURCES = sorted(str(path) for folder in OP_FOLDERS for path in folder.glob("*.cc"))
CUDA_SOURCES = sorted(str(path) for path in Path("custom_ops/cuda").rglob("*.c*"))
HEADERS = sorted(str(path) for path in Path("custom_ops").rglob("*.h"))

COMPILE_FLAGS = [
    "-O3",
    "-fPIC",
    "-DNDEBUG",  # as TensorFlow itself is built; some of its headers differ without it
    # The bits of a result must not depend on the instruction set: cpu/instruction_sets.h.
    "-ffp-contract=off",
    # Neither changes a result. They let comparisons and square roots be vectorised.
    "-fno-trapping-math",
    "-fno-math-errno",
    # Loops marked `omp simd` are vectorised; no OpenMP run time is used.
    "-fopenmp-simd",
    # A loop of few instructions loses up to a third of its speed where it crosses a cache line.
    "-falign-loops=32",
]


def import_tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow
    except Exception as error:  # a broken TensorFlow raises anything from ImportError to TypeError
        raise NotBuilt(
            f"TensorFlow cannot be imported while building: {error!r} (install it first, and use "
            "`pip install --no-build-isolation`)"
        ) from error
    return tensorflow


def compile_op(sources, scratch):
    """Compile `sources` in the folder `scratch`; return the library and how it was built."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    compiler_version = run([*compiler, "--version"]).splitlines()[0]
    tf = import_tensorflow()
    compile_flags = [*tf.sysconfig.get_compile_flags(), *COMPILE_FLAGS]
    link_flags = tf.sysconfig.get_link_flags()

    objects = [scratch / f"{Path(source).stem}.o" for source in sources]
    commands = [
        [*compiler, *compile_flags, "-c", source, "-o", str(out)]
        for source, out in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
    library = scratch / "adasum_ops.so"
    run([*compiler, "-shared", *map(str, objects), *link_flags, "-o", str(library)])

    return library, {
        "tensorflow_version": tf.version.VERSION,
        "tensorflow_git_version": tf.version.GIT_VERSION,
        "compiler": shlex.join(compiler),
        "compiler_version": compiler_version,
        # TensorFlow's own flags name folders of this machine; the rest says how the op was built.
        "compile_flags": [flag for flag in compile_flags if not flag.startswith("-I")],
        "link_flags": [flag for flag in link_flags if not flag.startswith("-L")],
        "cxx11_abi": tf.sysconfig.CXX11_ABI_FLAG,
        "machine": platform.machine(),
    }


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
    """Compile the kernels for GPUs in `scratch`; return the files, and how or why not."""
    try:
        if choice == "0":
            raise NotBuilt("TF_ADASUM_CUDA=0")
        if choice == "auto" and not import_tensorflow().test.is_built_with_cuda():
            raise NotBuilt("this TensorFlow cannot use NVIDIA GPUs")
        compiler = shlex.split(os.environ.get("CXX") or "g++")
        library = build_cuda.compile_host(scratch, compiler)
        description = build_cuda.compile_kernels(scratch)
    except NotBuilt as reason:
        if choice == "1":
            raise SystemExit(f"tf_adasum: the CUDA kernels were not built: {reason}") from reason
        return [], {"not_built": str(reason)}
    files = [library, scratch / build_cuda.KERNELS]
    return files, description | {"bytes": {file.name: file.stat().st_size for file in files}}


class BuildOp(build_ext):
    """Compile the op, and leave either a library with its description or neither."""

    def get_ext_filename(self, fullname):
        # TensorFlow loads the library, not Python: no `.cpython-311-…` in its name.
        return os.path.join(*fullname.split(".")) + ".so"

    def get_source_files(self):
        return [*SOURCES, *CUDA_SOURCES, *HEADERS, "custom_ops/build_cuda.py"]

    def get_outputs(self):
        return [path for path in self._products(Path(self.build_lib)) if os.path.exists(path)]

    def get_output_mapping(self):
        built = self._products(Path(self.build_lib))
        return dict(zip(built, self._products(Path()), strict=True)) if self.inplace else {}

    def run(self):
        cuda_wanted = cuda_choice()
        # Whatever an earlier build left behind must not outlive this one.
        destination = Path() if self.inplace else Path(self.build_lib)
        for product in self._products(destination):
            Path(product).unlink(missing_ok=True)
        library, build_info, *_ = map(Path, self._products(destination))
        scratch = Path(self.build_temp)
        scratch.mkdir(parents=True, exist_ok=True)
        try:
            built, description = compile_op(SOURCES, scratch)
        except NotBuilt as reason:
            if os.environ.get("TF_ADASUM_REQUIRE_OP") == "1":
                raise SystemExit(f"tf_adasum: the compiled op was not built: {reason}") from reason
            print(
                f"tf_adasum: the compiled op ({library}) was NOT built: {reason}\n"
                "tf_adasum works without it, on slower stock TensorFlow operations. To build it "
                "later, run in the source folder:\n"
                f"    {BUILD_IN_PLACE if self.inplace else INSTALL_AGAIN}",
                file=sys.stderr,
            )
            return
        cuda_files, cuda = compile_cuda(scratch, cuda_wanted)
        library.parent.mkdir(parents=True, exist_ok=True)
        for source, name in [(built, library.name), *((file, file.name) for file in cuda_files)]:
            shutil.copy2(source, library.with_name(name))
        build_info.write_text(json.dumps(description | {"cuda": cuda}, indent=2) + "\n")
        why_not = cuda.get("not_built")
        print(
            f"tf_adasum: built the compiled op for TensorFlow {description['tensorflow_version']}; "
            + (f"no CUDA kernels: {why_not}" if why_not else f"CUDA kernels: {cuda}")
        )

    def _products(self, root):
        library = root / self.get_ext_filename(LIBRARY)
        names = [library.name, BUILD_INFO, build_cuda.HOST_LIBRARY, build_cuda.KERNELS]
        return [str(library.with_name(name)) for name in names]


# The Extension makes wheels platform-specific and `build_ext` part of every installation.
setup(ext_modules=[Extension(LIBRARY, SOURCES)], cmdclass={"build_ext": BuildOp})
