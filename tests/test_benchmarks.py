"""The benchmarks, as far as a machine without a GPU can run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

# Nothing is as exact as this script demands.
STRICTER = """
import sys
sys.path.insert(0, {folder!r})
import gpu_expected
import kernels_gpu
for allowed in gpu_expected.SUMS, gpu_expected.ROUNDING:
    allowed.update(dict.fromkeys(allowed, 0.0))
sys.argv = ["kernels_gpu.py", "--emulated"]
kernels_gpu.main()
"""

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no g++ to compile the emulation"
)


def run(*arguments):
    """Runs Python without a GPU in sight."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )


@needs_compiler
def test_dry_run_of_the_gpu_benchmark_measures_every_case(tmp_path):
    out = tmp_path / "reports"
    ended = run(BENCHMARKS / "kernels_gpu.py", "--emulated", "--rounds", 2, "--out", out)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "these numbers mean nothing" in ended.stdout
    assert not out.exists()
    tables = ended.stdout[ended.stdout.index("## Pairwise") :].splitlines()
    rows = [line.strip("| ").split(" | ") for line in tables if line.startswith("| ")]
    assert {row[0] for row in rows} >= {"float32", "bfloat16", "float16", "float64"}
    pairwise = [row for row in rows if row[3] in ("cold", "warm")]
    assert {row[5] for row in pairwise} == {"single pass", "two passes"}
    assert {row[3] for row in pairwise} == {"cold", "warm"}
    for title in ("## Gram", "## Weighted sum"):
        assert sum(line == title for line in tables) == 1
    # Two types, each with two numbers of rows and with small segments; in two tables.
    assert sum(row[1] in ("2", "3", "16") for row in rows) == 12


@needs_compiler
def test_gpu_benchmark_refuses_to_time_a_wrong_kernel(tmp_path):
    ended = run("-c", STRICTER.format(folder=str(BENCHMARKS)))
    assert ended.returncode == 1
    assert "wrong kernels, so there is no report" in ended.stderr
    for kernel in ("pairwise float32", "Gram bfloat16", "weighted-sum float32"):
        assert kernel in ended.stderr
    assert "cold" not in ended.stdout


def test_gpu_benchmark_says_that_there_is_no_gpu():
    ended = run(BENCHMARKS / "kernels_gpu.py")
    assert ended.returncode == 1
    assert "finds no NVIDIA GPU" in ended.stderr
    assert "--emulated" in ended.stderr
