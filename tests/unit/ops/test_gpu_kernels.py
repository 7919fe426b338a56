"""Whether the kernels for GPUs are used, by what a build and a machine say of themselves."""

import hashlib

import pytest

from tf_adasum.ops import gpu_kernels

BUILT = {
    "_adasum_cuda.so": hashlib.sha256(b"host").hexdigest(),
    "_adasum_kernels.fatbin": hashlib.sha256(b"kernels").hexdigest(),
}


@pytest.mark.parametrize(
    ("cuda", "files", "reason"),
    [
        ({"not_built": "no compiler"}, {}, "were not built (no compiler)"),
        ({}, {}, "does not exist"),
        ({"sha256": {}}, {"_adasum_cuda.so": b"host"}, "_adasum_kernels.fatbin does not exist"),
        (
            {"sha256": {}},
            {"_adasum_cuda.so": b"host", "_adasum_kernels.fatbin": b"kernels"},
            "_adasum_cuda.so is not the file that was built",
        ),
        (
            {"sha256": BUILT},
            {"_adasum_cuda.so": b"host", "_adasum_kernels.fatbin": b"damaged"},
            "_adasum_kernels.fatbin is not the file that was built",
        ),
        (
            {"sha256": BUILT},
            {"_adasum_cuda.so": b"host", "_adasum_kernels.fatbin": b"kernels"},
            None,
        ),
    ],
)
def test_whether_the_files_are_those_that_were_built(cuda, files, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_kernels, "gpus", lambda: [90])
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = gpu_kernels.why_not(tmp_path, cuda)
    assert found is None if reason is None else reason in found


NVCC = {"compiler": "nvcc", "cuda": "13.0", "architectures": [75, 80, 86, 90, 120]}
NVCC["translated"] = True
NVRTC = {"compiler": "NVRTC", "cuda": "12.5", "architectures": [80]}


@pytest.mark.parametrize(
    ("cuda", "driver", "fits"),
    [
        (NVCC, (13, 0), True),
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
        (NVCC, [70], False),  # V100: older than all
        (NVCC, [87, 89], True),  # code of 86
        (NVCC, [100], False),  # neither code of its major version nor later than the newest
        (NVCC, [121], True),
        (NVCC, [130], True),  # translated
        (NVCC, [90, 70], False),
        (NVRTC, [80], True),
        (NVRTC, [90], False),  # it leaves no form to translate
        ({}, [70], True),
    ],
)
def test_the_gpus_are_among_those_compiled_for(cuda, capabilities, fits):
    found = gpu_kernels.why_not_the_gpus(cuda, capabilities)
    assert (found is None) == fits
    assert fits or "and a GPU here has" in found


def test_a_machine_whose_driver_is_too_old(tmp_path, monkeypatch):
    for name in gpu_kernels.NAMES:
        (tmp_path / name).write_bytes(b"1234")
    sha256 = hashlib.sha256(b"1234").hexdigest()
    cuda = NVCC | {"sha256": dict.fromkeys(gpu_kernels.NAMES, sha256)}
    monkeypatch.setattr(gpu_kernels, "driver_cuda", lambda: (12, 4))
    monkeypatch.setattr(gpu_kernels, "gpus", list)
    assert gpu_kernels.why_not(tmp_path, cuda) is None, "TensorFlow uses no GPU: nothing to warn of"
    monkeypatch.setattr(gpu_kernels, "gpus", lambda: [90])
    assert "this driver is for CUDA 12.4" in gpu_kernels.why_not(tmp_path, cuda)
    monkeypatch.setattr(gpu_kernels, "driver_cuda", lambda: (13, 0))
    assert gpu_kernels.why_not(tmp_path, cuda) is None


def test_a_machine_without_a_driver_says_nothing(monkeypatch):
    def no_driver(name):
        raise OSError(name)

    monkeypatch.setattr(gpu_kernels.ctypes, "CDLL", no_driver)
    assert gpu_kernels.driver_cuda() is None
