"""The CUDA kernels in compilers: with sanitizers, without a driver, and by nvcc, if it exists."""

import ctypes.util
import shutil
import subprocess
import sys

import pytest
from support import cuda_library
from support.cuda_library import SEGMENT_GRAM, TYPES, CudaLibrary, LibraryError

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
pytestmark = pytest.mark.version_independent


@needs_compiler
def test_without_the_cuda_driver(tmp_path):
    if ctypes.util.find_library("cuda") is not None:
        pytest.skip("this machine has the CUDA driver")
    library = CudaLibrary(cuda_library.build(tmp_path, emulated=False))
    with pytest.raises(LibraryError, match=r"CUDA driver libcuda\.so\.1"):
        library.plan(SEGMENT_GRAM, TYPES["float32"], 2, [0, 64])


SANITIZED_RUN = """
import sys
sys.path[:0] = [sys.argv[1]]
import numpy as np
from support.cuda_library import CudaLibrary, SINGLE_PASS, TWO_PASSES

class ExactBuffer:  # without guards: the sanitizer sees both ends
    def __init__(self, byte_count, offset=0):
        self.content = np.full(byte_count, 255, np.uint8)
        self.pointer = self.content.ctypes.data

    def write(self, array):
        self.content[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)

    def read(self, dtype, shape):
        return self.content.view(dtype).reshape(shape)

library = CudaLibrary(sys.argv[2])
library.allocate = ExactBuffer
segments = [0, 0, 3, 20, 5021, 5040]
for dtype in (np.float16, np.float32, np.float64):
    for row_count in (2, 5, 9, 17):
        rows = np.ones((row_count, segments[-1]), dtype)
        for arguments in ({}, {"row_stride": segments[-1]}):
            gram = library.segment_gram(rows, segments, block_count=3, **arguments)
            assert (gram[-1] == 19).all()
            library.segment_weighted_sum(rows, gram[:, 0], segments, **arguments)
    for algorithm in (TWO_PASSES, SINGLE_PASS):
        for shared_bytes in (8192, 48 << 10):
            library.set_emulated_device(shared_bytes=shared_bytes)
            library.pairwise_combine(rows[0], rows[1], segments, algorithm=algorithm, block_count=3)
print("finished")
"""


@pytest.mark.slow
@needs_compiler
def test_sanitizers_find_nothing(tmp_path):
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    path = cuda_library.build(tmp_path, flags, emulated=True)
    runtime = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    # ASan has to come first in the process, before Python.
    tests = str(cuda_library.build_cuda.SOURCES.parents[1] / "tests")
    result = subprocess.run(
        [sys.executable, "-c", SANITIZED_RUN, tests, str(path)],
        env={"LD_PRELOAD": ":".join(runtime), "ASAN_OPTIONS": "detect_leaks=0", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0 and "finished" in result.stdout, result.stderr
