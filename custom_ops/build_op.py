"""Compile the op against the installed TensorFlow.

A compiled op works with only one minor version of TensorFlow. The file name contains this version:
`_adasum_ops_tf2.21.so`. setup.py calls the functions below.
"""

import os
import platform
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import build_ucx
from build_cuda import OLD_GLIBC_LINK_FLAGS, NotBuilt, digest, run

FOLDER = Path("custom_ops")  # builds run in the source folder
# These files are compiled only if UCX's headers are found.
UCX_SOURCES = [
    path for pattern in ("tensorflow/ucx_*.cc", "ucx/*.cc") for path in sorted(FOLDER.glob(pattern))
]
SOURCES = [
    str(path)
    for part in ("tensorflow", "cpu")
    for path in sorted((FOLDER / part).glob("*.cc"))
    if path not in UCX_SOURCES
]

COMPILE_FLAGS = [
    "-O3",
    "-fPIC",
    "-DNDEBUG",  # TensorFlow itself is built with it, and some of its headers depend on it
    # The bits of a result must not depend on the instruction set; see cpu/instruction_sets.h.
    "-ffp-contract=off",
    # These two flags change no result. They allow vectorised comparisons and square roots.
    "-fno-trapping-math",
    "-fno-math-errno",
    # Vectorises loops marked `omp simd`, without the OpenMP runtime library.
    "-fopenmp-simd",
    # A loop of few instructions loses up to a third of its speed if it crosses a cache line.
    "-falign-loops=32",
]


def import_tensorflow():
    """Return TensorFlow, or raise NotBuilt."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow

        tensorflow.sysconfig  # noqa: B018  # fails if `tensorflow` is custom_ops/tensorflow
    except Exception as error:  # a broken TensorFlow raises ImportError, TypeError and others
        raise NotBuilt(
            f"TensorFlow cannot be imported while building: {error!r} (install it first, and use "
            "`pip install --no-build-isolation`)"
        ) from error
    return tensorflow


def compile_op(scratch):
    """Compile the op in the folder `scratch`.

    Returns:
        The minor version of TensorFlow, such as "2.21", the path of the library, and a dict that
        describes the build.
    """
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    compiler_version = run([*compiler, "--version"]).splitlines()[0]
    tf = import_tensorflow()
    compile_flags = [*tf.sysconfig.get_compile_flags(), *COMPILE_FLAGS]
    link_flags = [*tf.sysconfig.get_link_flags(), *OLD_GLIBC_LINK_FLAGS]

    try:
        # Kept separate from the recorded flags, because this folder is specific to this machine.
        ucx_flags, sources = [f"-I{build_ucx.include_folder()}"], [*SOURCES, *map(str, UCX_SOURCES)]
        ucx = {"built": True}
    except NotBuilt as reason:
        ucx_flags, sources = [], SOURCES
        ucx = {"not_built": str(reason)}

    objects = [scratch / f"{Path(source).stem}.o" for source in sources]
    commands = [
        [*compiler, *compile_flags, *ucx_flags, "-c", source, "-o", str(out)]
        for source, out in zip(sources, objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
    minor = ".".join(tf.version.VERSION.split(".")[:2])
    library = scratch / f"_adasum_ops_tf{minor}.so"
    run([*compiler, "-shared", *map(str, objects), *link_flags, "-o", str(library)])

    return (
        minor,
        library,
        {
            "tensorflow_version": tf.version.VERSION,
            "tensorflow_git_version": tf.version.GIT_VERSION,
            "compiler": shlex.join(compiler),
            "compiler_version": compiler_version,
            # TensorFlow's flags include folders of this machine, which are left out here.
            "compile_flags": [flag for flag in compile_flags if not flag.startswith("-I")],
            "link_flags": [flag for flag in link_flags if not flag.startswith("-L")],
            "cxx11_abi": tf.sysconfig.CXX11_ABI_FLAG,
            "machine": platform.machine(),
            "sha256": digest(library),
            "ucx": ucx,
        },
    )
