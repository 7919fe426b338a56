"""Report the registers, spills and shared memory of each CUDA kernel, as ptxas prints them.

    python benchmarks/ptxas.py --arch sm_90

Compiles custom_ops/cuda/kernels.cu for one architecture and writes
benchmarks/results/DATE-ptxas-sm_90.md. Needs nvcc, but no GPU.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

import report

KERNELS = report.ROOT / "custom_ops" / "cuda"
KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)'"
    r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
SHARED = re.compile(r"(\d+) bytes smem")


def parse(log):
    """Return one row of the table for each kernel, sorted by name."""
    rows = []
    for match in KERNEL.finditer(log):
        shared = SHARED.search(match["rest"])
        numbers = match.group("name", "registers", "stack", "stores", "loads")
        rows.append((*numbers, shared[1] if shared else 0))
    return sorted(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="sm_90", help="architecture (default: %(default)s)")
    parser.add_argument("--nvcc", default="nvcc", help="compiler (default: %(default)s)")
    arguments = parser.parse_args()

    command = [arguments.nvcc, "-cubin", "-std=c++17", f"-arch={arguments.arch}"]
    command += ["-Xptxas", "-v", "kernels.cu", "-o"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        start = time.monotonic()
        compiled = subprocess.run(
            [*command, cubin.name], cwd=KERNELS, capture_output=True, text=True, timeout=600
        )
        seconds = time.monotonic() - start
        size = os.path.getsize(cubin.name)
    if compiled.returncode != 0:
        sys.exit(compiled.stderr)

    version = subprocess.run(
        [arguments.nvcc, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    rows = parse(compiled.stderr)
    spilling = [name for name, _, *memory, _ in rows if set(memory) != {"0"}]
    header = ["kernel", "registers", "stack frame", "spill stores", "spill loads", "shared memory"]
    report.write(
        f"ptxas-{arguments.arch}",
        f"Registers and memory of the CUDA kernels on {arguments.arch}",
        f"In custom_ops/cuda:\n\n    {' '.join(command)} kernels.cubin\n\n"
        f"Compiled in {seconds:.0f} s to {size / 1e6:.1f} MB. Kernels that use local memory: "
        f"{', '.join(spilling) or 'none'}.\n\n"
        "Sizes in bytes for each thread, shared memory for each block; the single-pass kernels "
        "add dynamic shared memory, up to what a block may have. Kernels of 4 registers stop the "
        "program: other kernels replace them on this architecture.\n\n"
        + report.table(header, rows),
        machine=version.splitlines()[-2],
    )


if __name__ == "__main__":
    main()
