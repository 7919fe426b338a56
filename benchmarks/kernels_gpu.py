"""Time the CUDA kernels against the speed of the GPU's memory and against plain PyTorch.

    python benchmarks/kernels_gpu.py                 on a machine with an NVIDIA GPU
    python benchmarks/kernels_gpu.py --emulated      a dry run of this script, without one

Needs PyTorch for buffers and events, NumPy, ml_dtypes, g++ and nvcc (or NVRTC), but neither
TensorFlow nor Keras. Builds the kernels of custom_ops/cuda for this GPU and calls their C
interface. Each kernel is compared with float64 on the CPU before it is timed; if one is wrong, the
benchmark exits with status 1 and without a report.

A floor is the time to move the necessary bytes at the speed of a device-to-device copy, which moves
2 bytes for each byte copied. With R rows of N elements, the pairwise combination moves 5 N elements
in two passes and 3 N in a single pass, the Gram matrix R N, and the weighted sum (R + 1) N. In each
round, all methods and the copy are timed in turn, and a ratio compares the times of one round.
Before the timed calls, the GPU reads more data than its L2 holds. So all calls are in its queue
when the first of them starts, and the time of the host is not measured, unless a method has too
many launches to queue.

Writes benchmarks/results/DATE-kernels_gpu-CARD.md (with `--part` DATE-kernels_gpu-PART-CARD.md), or
into the folder of --out. Prints each row as soon as it is measured. To save time on the GPU,
`--no-compile` leaves out torch.compile, which takes seconds for each case, and `--part` measures
only the pairwise combination or only the operations on rows. `--built FOLDER` measures kernels that
were compiled before; FOLDER is the folder tf_adasum/ops of an installed wheel.
"""

import argparse
import functools
import itertools
import platform
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import exchange
import gpu_expected
import gpu_pytorch
import ml_dtypes
import numpy as np
import report
from support import cuda_library, gpu_devices
from support.cuda_library import (
    PAIRWISE_COMBINE,
    SEGMENT_GRAM,
    SEGMENT_WEIGHTED_SUM,
    build_cuda,
)

FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
FLOAT16, FLOAT64 = np.dtype(np.float16), np.dtype(np.float64)
ALGORITHMS = {
    "default": cuda_library.CHOOSE_BY_SIZE,
    "two passes": cuda_library.TWO_PASSES,
    "single pass": cuda_library.SINGLE_PASS,
}
PACKET_ELEMENTS = 8  # so that rows of every type begin at multiples of 16 bytes


CHAIN_SECONDS = 1e-3  # the approximate time of the calls between two events
MOST_CALLS = 10  # the maximum number of these calls
COPY_BYTES = 1 << 30
MEMORY_SHARE = 0.5  # of the free memory, for the buffers of one case

PAIRWISE_COLUMNS = ["type", "elements", "segments", "L2", "default µs", "it takes", "default / 5N"]
PAIRWISE_COLUMNS += ["two passes / 5N", "single pass / 5N", "single pass / 3N"]
PAIRWISE_COLUMNS += ["PyTorch / default", "torch.compile / default"]
ROWS_COLUMNS = ["type", "R", "elements", "segments", "µs", "time / floor", "PyTorch / ours"]
ROWS_COLUMNS += ["torch.compile / ours"]


# ---- timing --------------------------------------------------------------------------------------


@dataclass
class Bench:
    """The state that all cases share."""

    device: cuda_library.CudaLibrary
    card: gpu_devices.Card
    rounds: int
    with_compile: bool
    copy_bytes: int = COPY_BYTES
    failures: list = field(default_factory=list)  # of our kernels; then nothing is timed
    notes: list = field(default_factory=list)  # baselines that could not be measured
    copy_speeds: list = field(default_factory=list)  # bytes per second, of all rounds

    def __post_init__(self):
        random = np.random.default_rng(0)
        self.source = self.device.allocate(self.copy_bytes)
        self.source.write(random.integers(0, 256, self.copy_bytes, np.uint8))
        self.target = self.device.allocate(self.copy_bytes)

    def fitting(self, count, bytes_per_element):
        """Return `count`, or a smaller multiple of a packet if there is not enough memory."""
        most = int(MEMORY_SHARE * self.card.free_bytes / bytes_per_element)
        return min(count, most // PACKET_ELEMENTS * PACKET_ELEMENTS)

    def sets_of(self, set_bytes):
        """Return how many sets of buffers to use in turn, so that none is in L2 when it is read."""
        return int(np.clip(1 + -(-2 * self.card.l2_bytes // set_bytes), 2, MOST_CALLS + 1))

    def time_calls(self, calls, count):
        """Return the mean seconds of `count` successive calls from the iterator `calls`."""
        for _ in range(2):
            self.device.read_through(self.source)
        next(calls)()
        start = self.device.event()
        for _ in range(count):
            next(calls)()
        return self.device.seconds(start, self.device.event()) / count

    def in_turn(self, ways):
        """Return the seconds of each method, and the copy's bytes per second, in each round.

        A method is a list of calls that do the same with different buffers.
        """
        ways = {"copy": [lambda: self.device.copy(self.target, self.source)], **ways}
        ways = {name: itertools.cycle(calls) for name, calls in ways.items()}
        counts = {}
        for name, calls in ways.items():
            self.time_calls(calls, 1)
            seconds = max(self.time_calls(calls, 1), 1e-9)
            counts[name] = int(np.clip(CHAIN_SECONDS / seconds, 1, MOST_CALLS))
        seconds = {name: [] for name in ways}
        for _ in range(self.rounds):
            for name, calls in ways.items():
                seconds[name].append(self.time_calls(calls, counts[name]))
        seconds = {name: np.array(values) for name, values in seconds.items()}
        speed = 2 * self.copy_bytes / seconds.pop("copy")
        self.copy_speeds += speed.tolist()
        return seconds, speed

    def accept(self, what, problem):
        """Record the problem of one of our kernels, if there is one."""
        if problem:
            self.failures.append(f"{what}: {problem}")
            print(f"WRONG {self.failures[-1]}", flush=True)


# ---- cases ---------------------------------------------------------------------------------------


def ratio_cells(seconds, names, ours):
    """Return the time of each method divided by our time, as cells."""
    return [
        report.quartiles(seconds[name] / seconds[ours]) if name in seconds else "—"
        for name in names
    ]


def pairwise_lines(bench, dtype, segments):
    """Return the table's rows for one type and one list of segments: cold, and warm if it fits."""
    device, count, type_ = bench.device, int(segments[-1]), cuda_library.TYPES[dtype.name]
    what = f"pairwise {dtype.name}, {count} elements, {len(segments) - 1} segments"
    rows = gpu_expected.random_rows(dtype, 2, count)
    expected, allowed = gpu_expected.expect_combined(*rows, segments)
    set_bytes = 3 * rows[0].nbytes
    sets = []
    for _ in range(bench.sets_of(set_bytes)):
        a, b, combined = (device.allocate(rows[0].nbytes) for _ in range(3))
        a.write(rows[0])
        b.write(rows[1])
        sets.append((a, b, combined))

    def combine(plan, *buffers):
        spaces = plan.handle, plan.map.pointer, plan.workspace.pointer
        pointers = [buffer.pointer for buffer in buffers]
        device.check(device.c.adasum_pairwise_combine(*spaces, *pointers, device.stream()))

    plans, ways = {}, {}
    for name, algorithm in ALGORITHMS.items():
        try:
            plan = device.plan(PAIRWISE_COMBINE, type_, 2, segments, algorithm=algorithm)
        except cuda_library.LibraryError as error:
            if name != "single pass":
                raise
            bench.notes.append(f"{what}, {name}: {error}")
            continue
        combined = device.allocate(rows[0].nbytes)
        combine(plan, *sets[0][:2], combined)
        device.synchronize()
        bench.accept(
            f"{what}, {name}", gpu_expected.difference(combined.read(dtype, -1), expected, allowed)
        )
        plans[name] = plan
        ways[name] = [functools.partial(combine, plan, *buffers) for buffers in sets]
    if bench.failures:
        return []
    tensors = []
    if device.torch:
        tensors = [[x.tensor(dtype, -1) for x in (a, b)] for a, b, _ in sets]
    ways |= gpu_pytorch.baselines(bench, what, dtype, PAIRWISE_COMBINE, segments, tensors, expected)

    # The plan does not report its choice, but the algorithms divide the work differently.
    maps = {name: plan.map_bytes.tobytes() for name, plan in plans.items()}
    choice = "single pass" if maps["default"] == maps.get("single pass") else "two passes"
    lines = []
    for l2 in ["cold", "warm"] if 2 * set_bytes <= bench.card.l2_bytes else ["cold"]:
        of_sets = ways if l2 == "cold" else {name: calls[:1] for name, calls in ways.items()}
        seconds, speed = bench.in_turn(of_sets)
        row_seconds = rows[0].nbytes / speed
        to_two_passes = {name: seconds[name] / (5 * row_seconds) for name in plans}
        single = ["—", "—"]
        if "single pass" in plans:
            single = [
                report.quartiles(to_two_passes["single pass"]),
                report.quartiles(seconds["single pass"] / (3 * row_seconds)),
            ]
        line = [
            dtype.name,
            f"{count:,}",
            f"{len(segments) - 1:,}",
            l2,
            report.quartiles(seconds["default"], 1e6, 1),
            choice,
            report.quartiles(to_two_passes["default"]),
            report.quartiles(to_two_passes["two passes"]),
            *single,
            *ratio_cells(seconds, ["PyTorch", "torch.compile"], "default"),
        ]
        print("pairwise | " + " | ".join(line), flush=True)
        lines.append(line)
    return lines


def rows_lines(bench, rows, segments):
    """Return the rows of the tables of the Gram matrix and the weighted sum: {operation: row}.

    `rows` [R, stride] are longer than the segments, because they are padded to 16 bytes.
    """
    device, dtype, count = bench.device, rows.dtype, int(segments[-1])
    row_count, row_stride = rows.shape
    type_, used = cuda_library.TYPES[dtype.name], rows[:, :count]
    case = f"{dtype.name}, {row_count} rows, {count} elements, {len(segments) - 1} segments"
    random = np.random.default_rng(row_count)
    # All methods get the same coefficients, even if a method rounds them to the rows' type.
    coefficients = random.standard_normal((len(segments) - 1, row_count)).astype(BFLOAT16)
    coefficients = coefficients.astype(np.float64)
    row_bytes = count * dtype.itemsize
    gram_shape = (len(segments) - 1, row_count, row_count)
    gram_bytes = int(np.prod(gram_shape)) * 8

    weights = device.allocate(coefficients.nbytes)
    weights.write(coefficients)
    inputs = [device.allocate(rows.nbytes) for _ in range(bench.sets_of(rows.nbytes))]
    for buffer in inputs:
        buffer.write(rows)

    def gram(plan, buffer, result):
        spaces = plan.handle, plan.map.pointer, plan.workspace.pointer
        matrix = buffer.pointer, row_stride
        device.check(
            device.c.adasum_segment_gram(*spaces, *matrix, result.pointer, device.stream())
        )

    def weighted_sum(plan, buffer, result):
        spaces = plan.handle, plan.map.pointer
        pointers = buffer.pointer, row_stride, weights.pointer, result.pointer
        device.check(device.c.adasum_segment_weighted_sum(*spaces, *pointers, device.stream()))

    # name: operation, its call, bytes of the result, its type and shape, number of moved rows
    operations = {
        "Gram": (SEGMENT_GRAM, gram, gram_bytes, FLOAT64, gram_shape, row_count),
        "weighted sum": (SEGMENT_WEIGHTED_SUM, weighted_sum, row_bytes, dtype, -1, row_count + 1),
    }
    expectations = {
        "Gram": gpu_expected.expect_gram(used, segments),
        "weighted sum": gpu_expected.expect_weighted_sum(used, coefficients, segments),
    }
    lines = {}
    for name, (operation, call, result_bytes, result_dtype, shape, moved) in operations.items():
        what = f"{name.replace(' ', '-')} {case}"
        plan = device.plan(operation, type_, row_count, segments)
        results = [device.allocate(result_bytes) for _ in inputs]
        call(plan, inputs[0], results[0])
        device.synchronize()
        expected, allowed = expectations[name]
        actual = results[0].read(result_dtype, shape)
        bench.accept(what, gpu_expected.difference(actual, expected, allowed))
        if bench.failures:
            continue
        tensors = []
        if device.torch:
            tensors = [[x.tensor(dtype, rows.shape)[:, :count]] for x in inputs]
            if operation == SEGMENT_WEIGHTED_SUM:
                tensors = [[*x, weights.tensor(FLOAT64, coefficients.shape)] for x in tensors]
        ways = {
            name: [
                functools.partial(call, plan, buffer, result)
                for buffer, result in zip(inputs, results, strict=True)
            ],
            **gpu_pytorch.baselines(bench, what, dtype, operation, segments, tensors, expected),
        }
        seconds, speed = bench.in_turn(ways)
        to_floor = seconds[name] / (moved * row_bytes / speed)
        lines[name] = [
            dtype.name,
            row_count,
            f"{count:,}",
            f"{len(segments) - 1:,}",
            report.quartiles(seconds[name], 1e6, 1),
            report.quartiles(to_floor),
            *ratio_cells(seconds, ["PyTorch", "torch.compile"], name),
        ]
        print(f"{name} | " + " | ".join(map(str, lines[name])), flush=True)
    return lines


# ---- all cases -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """The sizes of the cases, in elements."""

    pairwise: tuple = (100_000, 1_000_000, 3_500_000)
    largest: int = 100_000_000
    model: tuple = tuple(int(np.prod(shape)) for shape in exchange.resnet50_shapes())
    row_counts: tuple = (2, 4, 8, 16)
    row: int = 25_000_000
    small_segments: int = 10_000
    longest_small_segment: int = 511
    rows_of_small_segments: int = 4


DRY_RUN = Sizes(
    pairwise=(600, 3000),
    largest=9000,
    model=(1728, 64, 64, 5, 1001),
    row_counts=(2, 16),
    row=2000,
    small_segments=20,
    longest_small_segment=40,
    rows_of_small_segments=3,
)


def offsets_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def small_segments(sizes):
    random = np.random.default_rng(1)
    return offsets_of(random.integers(1, sizes.longest_small_segment + 1, sizes.small_segments))


def measure_pairwise(bench, sizes):
    """Return all rows of the table of pairwise_combine."""
    model = offsets_of(sizes.model)
    # Two sets of three vectors, and PyTorch's intermediate results.
    largest = bench.fitting(sizes.largest, 12 * 4)
    lines = []
    for dtype in (FLOAT32, BFLOAT16):
        single = [*sizes.pairwise, int(model[-1]), largest]
        layouts = [np.array([0, count]) for count in single]
        layouts[-2:-2] = [model]
        for segments in [*layouts, small_segments(sizes)]:
            lines += pairwise_lines(bench, dtype, segments)
    for dtype in (FLOAT16, FLOAT64):
        lines += pairwise_lines(bench, dtype, np.array([0, model[-1]]))
    return lines


def measure_rows(bench, sizes):
    """Return all rows of the tables of segment_gram and segment_weighted_sum."""
    most_rows = max(sizes.row_counts)
    count = bench.fitting(sizes.row, 3 * (most_rows + 1) * 4)
    segments = small_segments(sizes)
    stride = -(-int(segments[-1]) // PACKET_ELEMENTS) * PACKET_ELEMENTS
    tables = {"Gram": [], "weighted sum": []}
    for dtype in (FLOAT32, BFLOAT16):
        rows = gpu_expected.random_rows(dtype, most_rows, count)
        cases = [(rows[:row_count], np.array([0, count])) for row_count in sizes.row_counts]
        cases.append(
            (gpu_expected.random_rows(dtype, sizes.rows_of_small_segments, stride), segments)
        )
        for rows_of_case, segments_of_case in cases:
            for name, line in rows_lines(bench, rows_of_case, segments_of_case).items():
                tables[name].append(line)
    return tables


def body_of(bench, pairwise, tables):
    """Return the text of the report."""
    if not bench.device.torch:
        beside = "PyTorch was not measured: a dry run."
    else:
        beside = (
            "PyTorch: eager, one call after the other, one segment with `torch.dot` and matrix "
            "products, several with `torch.segment_reduce`; it waits for the host where its "
            "kernels are small. torch.compile: the same formulas, written so that it can fuse them."
        )
        if not bench.with_compile:
            beside += " torch.compile was left out (--no-compile)."
    l2 = bench.card.l2_bytes / 1e6
    parts = [
        f"Medians (quartiles) of {bench.rounds} rounds, all ways in turn in each; CUDA events "
        f"around up to {MOST_CALLS} calls behind each other. A device-to-device copy of "
        f"{bench.copy_bytes / 1e6:,.0f} MB ran in each round beside them, at "
        f"{report.quartiles(bench.copy_speeds, 1e-9, 0)} GB/s, read and written bytes counted. "
        f"Floors are bytes over the copy's speed in the same round. Cold: the buffers are taken in "
        f"turn, at least twice the L2 of {l2:.0f} MB in all (or no buffer is used twice between "
        "two events), and none of their data is in the L2 when a call starts. Warm: the same "
        "buffers in every call, of at most half the L2. All results were compared with float64 "
        f"before. {beside}",
    ]
    if pairwise:
        parts.append(
            "## Pairwise combination\n\n5N and 3N: the floors of two passes and of a single pass, "
            "5 and 3 vectors of N elements. Out of place. A small size takes a few µs for its "
            "launches, whatever it moves.\n\n" + report.table(PAIRWISE_COLUMNS, pairwise)
        )
    floors = {"Gram": "R rows", "weighted sum": "R + 1 rows"}
    for name, lines in tables.items():
        parts.append(
            f"## {name[0].upper()}{name[1:]}\n\nThe floor: {floors[name]}. All are cold.\n\n"
            + report.table(ROWS_COLUMNS, lines)
        )
    if bench.notes:
        parts.append("## Not measured\n\n" + "\n".join(f"- {note}" for note in bench.notes))
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulated", action="store_true", help="a dry run without a GPU")
    parser.add_argument("--part", choices=["pairwise", "rows"], help="measure only this")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--built", type=Path, help="measure the compiled kernels of this folder")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of the report")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        shared = (arguments.rounds, not arguments.no_compile)
        if arguments.emulated:
            compiler = "g++"
            device = gpu_devices.EmulatedDevice(cuda_library.emulated_library())
            bench = Bench(
                device, gpu_devices.Card("no GPU", 1 << 14, 1 << 30), *shared, copy_bytes=1 << 12
            )
            sizes = DRY_RUN
        else:
            try:
                device, compiler = gpu_devices.build(folder, arguments.built)
                card = gpu_devices.find_card()
            except (gpu_devices.GpuUnavailable, build_cuda.NotBuilt) as reason:
                sys.exit(
                    f"kernels_gpu.py cannot time the CUDA kernels: {reason}. `--emulated` runs the "
                    "script's logic without a GPU."
                )
            bench, sizes = Bench(device, card, *shared), Sizes()
        pairwise = measure_pairwise(bench, sizes) if arguments.part != "rows" else []
        tables = measure_rows(bench, sizes) if arguments.part != "pairwise" else {}
    if bench.failures:
        sys.exit("\n".join(["wrong kernels, so there is no report:", *bench.failures]))

    body = body_of(bench, pairwise, tables)
    if arguments.emulated:
        print(f"{body}\n\nDRY RUN on an emulated GPU: these numbers mean nothing. No report.")
        return
    card = bench.card
    slug = re.sub(r"[^a-z0-9]+", "-", card.name.lower().removeprefix("nvidia ")).strip("-")
    machine = (
        f"{card.name}, driver {card.driver}, kernels compiled by {compiler}; buffers and events of "
        f"{device.description}. {platform.machine()}, Python {platform.python_version()}, NumPy "
        f"{np.__version__}"
    )
    title = f"CUDA kernels against the memory's speed: {card.name}"
    name = f"kernels_gpu-{arguments.part}" if arguments.part else "kernels_gpu"
    report.write(f"{name}-{slug}", title, body, machine=machine, folder=arguments.out)


if __name__ == "__main__":
    main()
