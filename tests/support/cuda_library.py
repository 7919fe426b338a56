"""ctypes access to the C interface of the CUDA kernels, with NumPy arrays in and out.

`CudaLibrary` works on the emulated library, whose device memory is host memory. `gpu_devices` has
the classes for a GPU.

Shape letters: S segments, R rows (replicas), N elements in a row.
"""

import ctypes
import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from support.build_cache import built_once

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "custom_ops"))
import build_cuda

PAIRWISE_COMBINE, SEGMENT_GRAM, SEGMENT_WEIGHTED_SUM = 0, 1, 2
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
CHOOSE_BY_SIZE, TWO_PASSES, SINGLE_PASS = 0, 1, 2

UNWRITTEN = 0xFF  # in every byte; a NaN in each of the four types
# `make sanitize` sets flags of sanitizers, which see both ends of a buffer if it has no guards.
FLAGS = os.environ.get("ADASUM_EMULATION_FLAGS", "-O1").split()
GUARD_BYTES = 0 if "ADASUM_EMULATION_FLAGS" in os.environ else 256
PACKET_BYTES = 16

PIECE = np.dtype(
    [("begin", "i8"), ("end", "i8"), ("segment", "i4"), ("slot", "i4"), ("slots", "i4", (2,))]
)


def emulated_library() -> Path:
    """Return the path of the library that runs the kernels on the CPU; compile it if needed."""
    options = subprocess.check_output(["g++", "-v"], text=True, stderr=subprocess.STDOUT)
    sources = [build_cuda.SOURCES, *build_cuda.SOURCES.parent.glob("*.[hp]*")]
    options = [options, *FLAGS]
    folder = built_once("emulation", sources, options, functools.partial(build, emulated=True))
    return folder / build_cuda.HOST_LIBRARY


def build(folder: Path, *, emulated: bool) -> Path:
    """Compile the library in `folder`, with warnings as errors; return its path.

    The emulation takes about 15 seconds: see `emulated_library`.
    """
    folder.mkdir(exist_ok=True)
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]  # #pragma unroll
    return build_cuda.compile_host(folder, flags=[*warnings, *FLAGS], emulated=emulated)


class PlanOptions(ctypes.Structure):
    """AdasumPlanOptions of the C interface."""

    _fields_ = [
        ("pairwise_algorithm", ctypes.c_int32),
        ("block_count", ctypes.c_int32),
        ("small_segment", ctypes.c_int64),
    ]


class LibraryError(RuntimeError):
    """An error code of the library, with its text."""


class Buffer:
    """Unwritten memory between two guards, `offset` bytes behind a multiple of 64.

    For device memory, derive a class that overrides the methods that touch the memory.
    """

    def __init__(self, byte_count, offset=0):
        self.memory = self.new_memory(byte_count + offset + 2 * GUARD_BYTES)
        address = self.address()
        self._begin = GUARD_BYTES and GUARD_BYTES - address % 64
        self._begin += offset
        self.bytes = self.memory[self._begin : self._begin + byte_count]
        self.pointer = address + self._begin

    # ---- methods that a subclass overrides

    def new_memory(self, byte_count):
        """Return an array of so many bytes, all of them `UNWRITTEN`."""
        return np.full(byte_count, UNWRITTEN, np.uint8)

    def address(self):
        """Return the address of `self.memory`."""
        return self.memory.ctypes.data

    def copy_to_device(self, part, content):
        """Copy a NumPy array of bytes to a slice of `self.bytes`."""
        part[:] = content

    def copy_to_host(self, part):
        """Return a copy, as a NumPy array, of a slice of `self.memory`."""
        return part.copy()

    # ---- the interface

    def write(self, array, begin=0):
        """Copy an array's bytes into the buffer, from byte `begin` on."""
        content = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self.copy_to_device(self.bytes[begin : begin + content.size], content)

    def read(self, dtype, shape):
        """Return a copy of the content, after checking the guards."""
        content = self.copy_to_host(self.bytes)
        guards = self.memory[: self._begin], self.memory[self._begin + content.size :]
        if any((self.copy_to_host(guard) != UNWRITTEN).any() for guard in guards):
            raise AssertionError("a kernel has written outside of its buffer")
        return content.view(dtype).reshape(shape)


class Plan:
    """A plan with its map and its workspace in device memory."""

    def __init__(self, library, handle):
        self._library, self.handle = library, handle
        c = library.c
        size = c.adasum_plan_map_size(handle)
        content = ctypes.string_at(c.adasum_plan_map(handle), size)
        self.map_bytes = np.frombuffer(content, np.uint8).copy()
        self.map = library.allocate(size)
        self.map.write(self.map_bytes)
        self.workspace_size = c.adasum_plan_workspace_size(handle)
        self.workspace = library.allocate(self.workspace_size)

    def pieces(self, element_count):
        """Return the pieces at the start of the map: none is empty, and they cover all elements."""
        usable = self.map_bytes.size // PIECE.itemsize * PIECE.itemsize
        pieces = self.map_bytes[:usable].view(PIECE)
        covered = np.cumsum(pieces["end"] - pieces["begin"])
        count = int(np.flatnonzero(covered == element_count)[0]) + 1
        return pieces[:count]

    def __del__(self):
        self._library.c.adasum_plan_destroy(self.handle)


class CudaLibrary:
    """The three operations of one shared library."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        p, i64 = ctypes.c_void_p, ctypes.c_int64
        signatures = {
            "adasum_plan_create": (
                ctypes.c_int,
                [ctypes.c_int, ctypes.c_int, i64, p, i64, ctypes.POINTER(PlanOptions), p],
            ),
            "adasum_plan_destroy": (None, [p]),
            "adasum_plan_map": (p, [p]),
            "adasum_plan_map_size": (i64, [p]),
            "adasum_plan_workspace_size": (i64, [p]),
            "adasum_pairwise_combine": (ctypes.c_int, [p] * 7),
            "adasum_segment_gram": (ctypes.c_int, [p, p, p, p, i64, p, p]),
            "adasum_segment_weighted_sum": (ctypes.c_int, [p, p, p, i64, p, p, p]),
            "adasum_error_string": (ctypes.c_char_p, [ctypes.c_int]),
        }
        for name, (result, arguments) in signatures.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments

    def set_emulated_device(self, multiprocessors=4, compute_capability=90, shared_bytes=48 << 10):
        """Change what the emulated device offers to the next plans."""
        set_device = self.c.adasum_emulation_set_device
        set_device.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64]
        set_device(multiprocessors, compute_capability, shared_bytes)

    # ---- methods that a subclass overrides

    def allocate(self, byte_count, offset=0):
        """Return a new `Buffer` in device memory."""
        return Buffer(byte_count, offset)

    def stream(self):
        """Return the handle of the stream that the operations use."""
        return None

    def synchronize(self):
        """Wait for the stream."""

    # ---- the interface

    def check(self, error):
        """Raise what an error code says."""
        if error != 0:
            raise LibraryError(f"error {error}: {self.c.adasum_error_string(error).decode()}")

    def plan(
        self,
        operation,
        type_,
        row_count,
        segments,
        *,
        algorithm=CHOOSE_BY_SIZE,
        block_count=0,
        small_segment=0,
    ) -> Plan:
        """Make a plan and allocate its memory."""
        segments = np.ascontiguousarray(segments, np.int64)
        options = PlanOptions(algorithm, block_count, small_segment)
        handle = ctypes.c_void_p()
        arguments = operation, type_, row_count, segments.ctypes.data, len(segments) - 1
        pointers = ctypes.byref(options), ctypes.addressof(handle)
        self.check(self.c.adasum_plan_create(*arguments, *pointers))
        return Plan(self, handle)

    def run(self, name, plan, *arguments):
        """Run an operation to its end."""
        run = getattr(self.c, name)
        self.check(run(plan.handle, plan.map.pointer, *arguments, self.stream()))
        self.synchronize()
        plan.workspace.read(np.uint8, -1)  # its guards

    def pairwise_combine(self, a, b, segments, *, offsets=(0, 0, 0), output=None, **options):
        """Return [N].

        `offsets`: elements by which a, b and the result are misaligned. `output`: "a" or "b" to
        write the result over that operand.
        """
        plan = self.plan(PAIRWISE_COMBINE, TYPES[a.dtype.name], 2, segments, **options)
        buffers = {
            name: self.allocate(a.nbytes, offset * a.itemsize)
            for name, offset in zip(("a", "b", "combined"), offsets, strict=True)
        }
        buffers["a"].write(a)
        buffers["b"].write(b)
        combined = buffers[output or "combined"]
        pointers = [x.pointer for x in (plan.workspace, buffers["a"], buffers["b"], combined)]
        self.run("adasum_pairwise_combine", plan, *pointers)
        return combined.read(a.dtype, a.shape)

    def segment_gram(self, rows, segments, *, row_stride=None, offset=0, **options):
        """Return [S, R, R] in float64."""
        row_count = len(rows)
        plan = self.plan(SEGMENT_GRAM, TYPES[rows.dtype.name], row_count, segments, **options)
        buffer, row_stride = self._rows(rows, row_stride, offset)
        shape = (len(segments) - 1, row_count, row_count)
        gram = self.allocate(int(np.prod(shape)) * 8)
        arguments = plan.workspace.pointer, buffer.pointer, row_stride, gram.pointer
        self.run("adasum_segment_gram", plan, *arguments)
        return gram.read(np.float64, shape)

    def segment_weighted_sum(
        self, rows, coefficients, segments, *, row_stride=None, offsets=(0, 0), **options
    ):
        """Return [N]. `offsets`: elements by which the rows and the result are misaligned."""
        type_ = TYPES[rows.dtype.name]
        plan = self.plan(SEGMENT_WEIGHTED_SUM, type_, len(rows), segments, **options)
        buffer, row_stride = self._rows(rows, row_stride, offsets[0])
        coefficients = np.ascontiguousarray(coefficients, np.float64)
        coefficient_buffer = self.allocate(coefficients.nbytes)
        coefficient_buffer.write(coefficients)
        combined = self.allocate(rows[0].nbytes, offsets[1] * rows.itemsize)
        arguments = buffer.pointer, row_stride, coefficient_buffer.pointer, combined.pointer
        self.run("adasum_segment_weighted_sum", plan, *arguments)
        return combined.read(rows.dtype, rows.shape[1:])

    def _rows(self, rows, row_stride, offset):
        """The rows in device memory, each at a multiple of 16 bytes unless a stride is given."""
        row_count, element_count = rows.shape
        if row_stride is None:
            packet = PACKET_BYTES // rows.itemsize
            row_stride = max(-(-element_count // packet) * packet, packet)
        buffer = self.allocate(row_count * row_stride * rows.itemsize, offset * rows.itemsize)
        padded = np.full((row_count, row_stride), np.nan, rows.dtype)
        padded[:, :element_count] = rows
        buffer.write(padded)
        return buffer, row_stride
