"""The CUDA kernels on a GPU, with memory and events of PyTorch; or emulated."""

import ctypes
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from support import cuda_library
from support.cuda_library import build_cuda


class TorchBuffer(cuda_library.Buffer):
    """Unwritten device memory of PyTorch, between two guards."""

    def __init__(self, torch, byte_count, offset):
        self._torch = torch
        super().__init__(byte_count, offset)

    def new_memory(self, byte_count):
        value = cuda_library.UNWRITTEN
        return self._torch.full((byte_count,), value, dtype=self._torch.uint8, device="cuda")

    def address(self):
        return self.memory.data_ptr()

    def copy_to_device(self, part, content):
        part.copy_(self._torch.from_numpy(content))

    def copy_to_host(self, part):
        return part.cpu().numpy()

    def tensor(self, dtype, shape):
        return self.bytes.view(getattr(self._torch, dtype.name)).view(shape)


class TorchDevice(cuda_library.CudaLibrary):
    """The CUDA kernels with memory and events of PyTorch."""

    def __init__(self, path):
        super().__init__(path)
        try:
            import torch
        except ImportError as error:
            raise GpuUnavailable(f"PyTorch is not installed: {error}") from error
        if not torch.cuda.is_available():
            raise GpuUnavailable(f"PyTorch {torch.__version__} finds no GPU")
        self.torch = torch
        self.description = f"PyTorch {torch.__version__} (CUDA {torch.version.cuda})"
        torch.zeros(1, device="cuda")  # makes the context that the kernels are loaded into

    def allocate(self, byte_count, offset=0):
        return TorchBuffer(self.torch, byte_count, offset)

    def stream(self):
        return self.torch.cuda.current_stream().cuda_stream

    def synchronize(self):
        self.torch.cuda.synchronize()

    def copy(self, to, source):
        to.bytes.copy_(source.bytes)

    def read_through(self, buffer):
        """Reads all of a buffer, which takes a while and leaves other data in the L2."""
        buffer.bytes.view(self.torch.float32).sum()

    def event(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start, stop):
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3


class EmulatedDevice(cuda_library.CudaLibrary):
    """The same kernels run by the CPU, for a dry run."""

    description, torch = "an emulation on the CPU", None

    def __init__(self, path):
        super().__init__(path)
        self.set_emulated_device(shared_bytes=8 << 10)  # so little that some sizes do not fit

    def copy(self, to, source):
        to.write(source.read(np.uint8, -1))

    def read_through(self, buffer):
        pass

    def event(self):
        return time.perf_counter()

    def seconds(self, start, stop):
        return stop - start


class GpuUnavailable(Exception):
    """Why the kernels cannot run on a GPU here."""


def build(folder, built=None):
    """Load compiled kernels, or compile them for the first GPU, in `folder`.

    Args:
        folder: for the compiled kernels.
        built: None, or a folder with compiled kernels and their `_build_info.json`, such as the
            folder tf_adasum/ops of an installed wheel.

    Returns:
        The library and a description of the compiler.

    Raises:
        GpuUnavailable: if there is no GPU, or PyTorch cannot use it.
        build_cuda.NotBuilt: if the kernels could not be compiled.
    """
    capability = build_cuda.first_gpu()
    if capability is None:
        raise GpuUnavailable("the CUDA driver finds no NVIDIA GPU here")
    if built is None:
        path = build_cuda.compile_host(folder)
        with mock.patch.dict(os.environ, {build_cuda.ARCHITECTURES_VARIABLE: str(capability)}):
            how = build_cuda.compile_kernels(folder)
        target = f"sm_{capability}"
    else:
        path = Path(built) / build_cuda.HOST_LIBRARY
        how = json.loads((Path(built) / "_build_info.json").read_text())["cuda"]
        target = f"{len(how['architectures'])} architectures"
    return TorchDevice(path), f"{how['compiler']} ({how['compiler_version']}) for {target}"


@dataclass
class Card:
    """Properties of the GPU, for the report and for the sizes of the cases."""

    name: str
    l2_bytes: int
    free_bytes: int
    driver: str = "unknown"


def find_card():
    """Return the properties of the first GPU; PyTorch has already made its context."""
    driver = ctypes.CDLL("libcuda.so.1")
    l2_cache_size = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    device, l2_bytes, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    failed = (
        driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, len(name), device)
        or driver.cuDeviceGetAttribute(ctypes.byref(l2_bytes), l2_cache_size, device)
        or driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    )
    if failed:
        raise GpuUnavailable(f"the CUDA driver does not describe the GPU: error {failed}")
    card = Card(name.value.decode(), l2_bytes.value, free.value)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
        card.driver = answer.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        pass  # the report says "unknown"
    return card
