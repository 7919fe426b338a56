"""The mesh without TensorFlow: processes that exchange messages of random sizes, until one ends."""

import subprocess
from pathlib import Path

import pytest
from support import meshes
from support.pace import PACE

from tf_adasum.transport import library

ROOT = Path(__file__).parents[3]
UCX = "custom_ops/ucx"
SOURCES = ["tests/support/mesh_endurance.cc", f"{UCX}/mesh.cc", f"{UCX}/ucx_library.cc"]
SECONDS = 300 * PACE
# To find out whether a peer is reachable, UCX 1.22 reads 16 bytes of the peer into the iovec that
# describes this read. AddressSanitizer looks at the iovec afterwards, and reports what it finds.
SUPPRESSIONS = "interceptor_via_fun:uct_cma_iface_is_reachable\n"


@pytest.fixture
def headers(monkeypatch):
    """The folder of UCX's headers."""
    monkeypatch.syspath_prepend(str(ROOT / "custom_ops"))
    import build_cuda
    import build_ucx

    try:
        return build_ucx.include_folder()
    except build_cuda.NotBuilt as reason:
        pytest.skip(str(reason))


@pytest.mark.version_independent
@pytest.mark.parametrize(
    ("sanitizer", "exchanges"),
    [
        pytest.param(None, 300),
        pytest.param("thread", 30, marks=pytest.mark.slow),
        pytest.param("address,undefined", 30, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("transports", ["posix,cma,self", "tcp,self"])
def test_exchanges_of_random_sizes(
    tmp_path, monkeypatch, headers, sanitizer, exchanges, transports
):
    meshes.opened()
    if sanitizer == "thread":  # its own process_vm_readv does not bear the address 0 of UCX's probe
        transports = transports.replace("cma,", "")
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    build = ["g++", "-std=c++17", "-g1", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", *flags]
    build += [f"-I{headers}", *SOURCES, "-o", str(tmp_path / "endurance"), "-ldl", "-lpthread"]
    subprocess.run(build, cwd=ROOT, check=True, timeout=SECONDS)
    monkeypatch.setenv("UCX_TLS", transports)
    suppressions = tmp_path / "suppressions"
    suppressions.write_text(SUPPRESSIONS)
    # Leaks are expected: memory that a peer may write is kept.
    monkeypatch.setenv("ASAN_OPTIONS", f"detect_leaks=0:suppressions={suppressions}")
    command = [tmp_path / "endurance", library._path(), "3", str(exchanges)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr
