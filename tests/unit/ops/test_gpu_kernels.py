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
    found = gpu_kernels.why_not(tmp_path, cuda)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("cuda", "driver", "fits"),
    [
        (NVCC, (14, 2), True),
        (NVCC, (12, 9), False),
        (NVRTC, (12, 2), True),
        (NVRTC, (11, 8), False),
        (NVRTC, None, True),
        ({}, (11, 8), True),
    ],
)
def test_the_driver_is_of_the_compilers_cuda_or_later(cuda, driver, fits):
    found = gpu_kernels.why_not_the_driver(cuda, driver)
    assert (found is None) == fits
    assert fits or f"for CUDA {cuda['cuda']}, and this driver is for CUDA {driver[0]}." in found


@pytest.mark.parametrize(
    ("cuda", "capabilities", "fits"),
    [
        (NVCC, [75], True),
        (NVCC, [87, 89], True),  # code of 86
        (NVCC, [100], False),  # neither code of its major version nor later than the newest
        (NVCC, [121, 130], True),  # 130 is translated
        (NVCC, [90, 70], False),
        (NVRTC, [80], True),
        (NVRTC, [90], False),  # it leaves no form to translate
        ({}, [70], True),
    ],
)
def test_the_gpus_are_among_those_compiled_for(cuda, capabilities, fits):
    assert (gpu_kernels.why_not_the_gpus(cuda, capabilities) is None) == fits


def test_a_machine_without_a_driver_has_no_version(monkeypatch):
    def no_driver(name):
        raise OSError(name)

    monkeypatch.setattr(gpu_kernels.ctypes, "CDLL", no_driver)
    assert gpu_kernels.driver_cuda() is None
