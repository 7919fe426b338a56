"""The GPU kernels of the op on a machine without a GPU.

The same sources are compiled once more, under other op names, with the GPU kernels registered on
the CPU, and above an emulation of the CUDA library: registration, shapes, checks, plans,
temporaries and errors are the product's own, only the device is not.
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorflow as tf

from support.cuda_library import build_cuda

ROOT = Path(__file__).parents[2]
SOURCES = [
    f"tensorflow/{name}.cc" for name in ("adasum_ops", "cuda_library", "gpu_ops", "gpu_plans")
]
DEFINES = [
    '-DTF_ADASUM_OP_PREFIX="TfAdasumEmulated"',
    "-DTF_ADASUM_GPU_KERNELS_ON=tensorflow::DEVICE_CPU",
]


def build(folder: Path):
    """Build the emulation in `folder` and load it; return the module of its ops.

    They are `tf_adasum_emulated_pairwise_combine`, `tf_adasum_emulated_segment_gram` and
    `tf_adasum_emulated_segment_weighted_sum`.
    """
    flags = [*tf.sysconfig.get_compile_flags(), *DEFINES, "-O1", "-fPIC", "-DNDEBUG"]

    def compile_one(name):
        target = folder / f"{Path(name).stem}.o"
        command = ["g++", *flags, "-c", str(ROOT / "custom_ops" / name), "-o", str(target)]
        subprocess.run(command, check=True, timeout=600)
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        emulation = pool.submit(build_cuda.compile_host, folder, emulated=True)
        objects = list(pool.map(compile_one, SOURCES))
        emulation.result()
    library = folder / "emulated_gpu.so"
    link = ["g++", "-shared", *objects, *tf.sysconfig.get_link_flags(), "-o", str(library)]
    subprocess.run(link, check=True, timeout=600)
    return tf.load_op_library(str(library))
