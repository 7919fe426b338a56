"""Whether the kernels for GPUs are used: their files, the driver and the GPUs."""

import hashlib

import pytest

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
        (CUDA | NVCC, FILES, (13, 0), [70], "and a GPU here has 70"),
        (CUDA | NVCC, FILES, (13, 0), [90], None),
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


OLD_DRIVER = "for CUDA {}, and this driver is for CUDA {}."


@pytest.mark.parametrize(
    ("cuda", "driver", "gpus", "reason"),
    [
        (NVCC, (14, 2), [75], None),
        (NVCC, (12, 9), [75], OLD_DRIVER.format("13.0", 12)),
        (NVRTC, (12, 2), [80], None),
        (NVRTC, (11, 8), [80], OLD_DRIVER.format("12.5", 11)),
        (NVRTC, None, [80], None),
        ({}, (11, 8), [70], None),
        (NVCC, None, [87, 89], None),  # code of 86
        (NVCC, None, [100], "has 100"),  # neither code of its major version nor later than all
        (NVCC, None, [121, 130], None),  # 130 is translated
        (NVCC, None, [90, 70], "has 70"),
        (NVRTC, None, [90], "has 90"),  # it leaves no form to translate
    ],
)
def test_kernels_fit_later_drivers_and_gpus_of_the_same_major_version(cuda, driver, gpus, reason):
    found = gpu_kernels.why_not_the_driver(cuda, driver)
    found = found or gpu_kernels.why_not_the_gpus(cuda, gpus)
    assert found is None if reason is None else reason in found


def test_a_machine_without_a_driver_has_no_version(monkeypatch):
    def no_driver(name):
        raise OSError(name)

    monkeypatch.setattr(gpu_kernels.ctypes, "CDLL", no_driver)
    assert gpu_kernels.driver_cuda() is None
