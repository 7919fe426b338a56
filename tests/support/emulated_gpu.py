"""The GPU kernels of the op on a machine without a GPU.

The same sources are compiled once more, under other op names, with the GPU kernels registered on
the CPU, and above an emulation of the CUDA library: registration, shapes, checks, plans,
temporaries and errors are the product's own, only the device is not.
"""

import functools
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorflow as tf

from support import cuda_library
from support.build_cache import built_once
from support.pace import PACE

ROOT = Path(__file__).parents[2]
LIBRARY = "emulated_gpu.so"
SOURCES = [
    f"tensorflow/{name}.cc" for name in ("adasum_ops", "cuda_library", "gpu_ops", "gpu_plans")
]
DEFINES = [
    '-DTF_ADASUM_OP_PREFIX="TfAdasumEmulated"',
    "-DTF_ADASUM_GPU_KERNELS_ON=tensorflow::DEVICE_CPU",
]


def load():
    """Return the module of the ops of the emulation, which is compiled if needed.

    They are `tf_adasum_emulated_pairwise_combine`, `tf_adasum_emulated_segment_gram` and
    `tf_adasum_emulated_segment_weighted_sum`.
    """
    cuda = cuda_library.emulated_library()
    flags = [*tf.sysconfig.get_compile_flags(), *DEFINES, "-O1", "-fPIC", "-DNDEBUG"]
    options = [tf.version.GIT_VERSION, *flags, str(cuda)]
    build = functools.partial(_build, flags, cuda)
    folder = built_once("emulated_gpu", [ROOT / "custom_ops"], options, build)
    return tf.load_op_library(str(folder / LIBRARY))


def _build(flags, cuda, folder):
    (folder / cuda.name).symlink_to(cuda)  # the ops look for it in their own folder

    def compile_one(name):
        target = folder / f"{Path(name).stem}.o"
        command = ["g++", *flags, "-c", str(ROOT / "custom_ops" / name), "-o", str(target)]
        subprocess.run(command, check=True, timeout=600 * PACE)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, SOURCES))
    link = ["g++", "-shared", *objects, *tf.sysconfig.get_link_flags(), "-o", str(folder / LIBRARY)]
    subprocess.run(link, check=True, timeout=600 * PACE)
