"""Whether the kernels for GPUs are used: their files, the driver and the GPUs."""

import ctypes
import hashlib
import types

import pytest
import tensorflow as tf

from tf_adasum.ops import gpu_kernels

FILES = dict.fromkeys(gpu_kernels.NAMES, b"built")
CUDA = {"sha256": dict.fromkeys(gpu_kernels.NAMES, hashlib.sha256(b"built").hexdigest())}
NVCC = {"cuda": "13.0", "architectures": [75, 80, 86, 90, 120], "translated": True}
NVRTC = {"cuda": "12.5", "architectures": [80]}
HOST, KERNELS = gpu_kernels.NAMES


@pytest.mark.parametrize(
    ("cuda", "files", "driver", "gpus", "reason"),
    [
        ({"not_built": "no compiler"}, {}, (13, 0), [90], "were not built (no compiler)"),
        (CUDA, {}, (13, 0), [90], f"{HOST} does not exist"),
        (CUDA, {HOST: b"built"}, (13, 0), [90], f"{KERNELS} does not exist"),
        ({}, FILES, (13, 0), [90], f"{HOST} is not the file that was built"),
        (CUDA, FILES | {KERNELS: b"damaged"}, (13, 0), [90], f"{KERNELS} is not the file that"),
        (CUDA | NVCC, FILES, (12, 4), [90], "this driver is for CUDA 12.4"),
        (CUDA | NVCC, FILES, (14, 2), [75], None),
        (CUDA | NVRTC, FILES, (12, 2), [80], None),  # of the same major version
        (CUDA | NVRTC, FILES, None, [80], None),
        (CUDA | NVCC, FILES, (13, 0), [90, 70], "and a GPU here has 70"),
        (CUDA | NVCC, FILES, (13, 0), [87, 89], None),  # code of 86
        (CUDA | NVCC, FILES, (13, 0), [100], "has 100"),  # no code for its major version
        (CUDA | NVCC, FILES, (13, 0), [121, 130], None),  # 130 is translated
        (CUDA | NVRTC, FILES, (13, 0), [90], "has 90"),  # it leaves no form to translate
        (CUDA | NVCC, FILES, (12, 4), [], None),  # TensorFlow uses no GPU: nothing to warn of
    ],
)
def test_reasons_not_to_use_the_kernels(cuda, files, driver, gpus, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_kernels, "gpus", lambda: gpus)
    monkeypatch.setattr(gpu_kernels, "driver_cuda", lambda: driver)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = gpu_kernels.unsupported_reason(tmp_path, cuda)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("status", "version"), [(0, (12, 9)), (35, None), (None, None)])
def test_the_version_of_the_driver(status, version, monkeypatch):
    def library(name):
        if status is None:
            raise OSError(f"{name}: no such file")
        return types.SimpleNamespace(cuDriverGetVersion=get_version)

    def get_version(pointer):
        pointer._obj.value = 12090
        return status

    monkeypatch.setattr(ctypes, "CDLL", library)
    assert gpu_kernels.driver_cuda() == version


def test_the_capabilities_of_the_gpus(monkeypatch):
    details = {"first": {"compute_capability": (8, 6)}, "without details": {}}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: list(details))
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details.get)
    assert gpu_kernels.gpus.__wrapped__() == [86]
