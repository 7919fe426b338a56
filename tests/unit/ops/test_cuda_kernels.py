"""The CUDA kernels, which an emulation runs on the CPU, against the NumPy oracle.

With `ADASUM_TEST_GPU=1` they run on the first GPU instead, with memory of PyTorch. Neither
TensorFlow nor Keras is needed. In tests/unit/ops:

    ADASUM_TEST_GPU=1 PYTHONPATH=../.. python -m pytest --noconftest test_cuda_kernels.py

`ADASUM_TEST_GPU` can also be the folder tf_adasum/ops of an installed wheel; then these kernels are
tested instead of newly compiled ones.

test_kernels.py tests the same kernels under TensorFlow, with the default plans.
"""

import ctypes.util
import itertools
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
from support import cuda_library, gpu_devices, oracle
from support.cuda_library import (
    CHOOSE_BY_SIZE,
    SEGMENT_WEIGHTED_SUM,
    SINGLE_PASS,
    TWO_PASSES,
    TYPES,
    CudaLibrary,
    LibraryError,
)

TEST_GPU = os.environ.get("ADASUM_TEST_GPU", "0")
ON_GPU = TEST_GPU != "0"
NO_COMPILER = not ON_GPU and shutil.which("g++") is None
pytestmark = [
    pytest.mark.version_independent,
    pytest.mark.skipif(NO_COMPILER, reason="there is no g++ to compile the emulation"),
]

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
ROW_COUNTS = [1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 20]

# Before the result is rounded, 16-bit and 32-bit numbers are computed in float32: a few roundings
# of each term, and inner products of which at most 32 products (128 on tensor cores) are added so.
COMPUTE = {"float16": 1e-6, "bfloat16": 1e-6, "float32": 1e-6, "float64": 1e-14}


def offsets_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


rng = np.random.default_rng(5)
MIXED = [*rng.integers(0, 200, 20), 6001, 2500, 64, 64, *rng.integers(0, 3, 9)]
LAYOUTS = {
    "no segments": np.array([0]),
    "only empty": np.array([0, 0, 0]),
    "one element": np.array([0, 1]),
    "unaligned": np.array([0, 0, 3, 20, 21, 37, 300, 1031]),
    "many tiny": offsets_of(np.arange(100) % 23),
    "mixed": offsets_of(rng.permutation(MIXED)),
    "one big": np.array([0, 18011]),
}


@pytest.fixture(scope="module")
def compiled_library(tmp_path_factory):
    if ON_GPU:
        built = None if TEST_GPU == "1" else TEST_GPU
        return gpu_devices.build(tmp_path_factory.mktemp("cuda"), built)[0]
    return CudaLibrary(cuda_library.emulated_library())


def test_without_the_cuda_driver(tmp_path):
    if ctypes.util.find_library("cuda") is not None:
        pytest.skip("this machine has the CUDA driver")
    library = CudaLibrary(cuda_library.build(tmp_path, emulated=False))
    with pytest.raises(LibraryError, match=r"CUDA driver libcuda\.so\.1"):
        library.plan(SEGMENT_WEIGHTED_SUM, TYPES["float32"], 2, [0, 64])


@pytest.fixture
def library(compiled_library):
    """The emulated library, or with ADASUM_TEST_GPU=1 the library on the GPU."""
    if not ON_GPU:
        compiled_library.set_emulated_device()
    return compiled_library


@pytest.fixture
def emulate_device(library):
    """Change the properties of the emulated device for the next plans."""
    if ON_GPU:
        pytest.skip("needs an emulated device with chosen properties")
    return library.set_emulated_device


@pytest.fixture(params=DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def dtype(request):
    return np.dtype(request.param)


def random_rows(dtype, row_count, element_count, seed=0):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(element_count)
    return (rng.standard_normal((row_count, element_count)) + 0.3 * common).astype(dtype)


# ---- pairwise combination ------------------------------------------------------------------------


# Algorithms, forced divisions, misaligned operands, and a result that takes an operand's place.
DIVISIONS = [{"block_count": b, "small_segment": s} for b, s in ((0, 0), (1, 0), (3, 50), (7, 50))]
OFFSETS = [{"offsets": offsets} for offsets in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 3, 2))]
WAYS = [
    *itertools.product([CHOOSE_BY_SIZE, TWO_PASSES, SINGLE_PASS], DIVISIONS),
    *itertools.product([CHOOSE_BY_SIZE, TWO_PASSES], OFFSETS),
    *itertools.product([TWO_PASSES, SINGLE_PASS], [{"output": "a"}, {"output": "b"}]),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pairwise_combine(library, dtype, layout):
    """Also commutative to the bit, which only a GPU could spoil with a fused multiply-add."""
    segments = LAYOUTS[layout]
    a, b = random_rows(dtype, 2, segments[-1])
    for algorithm, options in WAYS:
        combined = library.pairwise_combine(a, b, segments, algorithm=algorithm, **options)
        oracle.assert_pairwise(combined, a, b, segments, COMPUTE[dtype.name])
        swapped = library.pairwise_combine(b, a, segments, algorithm=algorithm, **options)
        assert combined.tobytes() == swapped.tobytes()


@pytest.mark.parametrize("layout", ["unaligned", "mixed", "one big"])
def test_on_other_devices(library, emulate_device, dtype, layout):
    """What does not fit on the chip is read again; without tensor cores; with nothing on chip."""
    segments = LAYOUTS[layout]
    rows = random_rows(dtype, 3, segments[-1])
    for device, algorithm in (
        ({"multiprocessors": 3, "shared_bytes": 8192}, SINGLE_PASS),
        ({"shared_bytes": 0}, CHOOSE_BY_SIZE),
    ):
        emulate_device(**device)
        combined = library.pairwise_combine(*rows[:2], segments, algorithm=algorithm)
        oracle.assert_pairwise(combined, *rows[:2], segments, COMPUTE[dtype.name])
    emulate_device(compute_capability=75)
    for row_count in (2, 3, 8, 13, 17) if dtype.itemsize == 2 and layout != "one big" else ():
        rows = random_rows(dtype, row_count, segments[-1])
        gram = library.segment_gram(rows, segments, block_count=3)
        oracle.assert_gram(gram, rows, segments, COMPUTE[dtype.name])


def test_squares_that_leave_float32(library):
    segments = np.array([0, 8, 16])
    extreme, ones = np.ones((2, 16), np.float32)
    extreme[:8] = 1e20  # the squares overflow: NaN, like an Inf
    extreme[8:] = 1e-30  # the squares underflow: it counts as zero
    for a, b in ((extreme, ones), (ones, extreme)):
        combined = library.pairwise_combine(a, b, segments)
        assert np.isnan(combined[:8]).all()
        np.testing.assert_array_equal(combined[8:], ones[8:])


# ---- Gram matrix ---------------------------------------------------------------------------------


@pytest.mark.parametrize("row_count", ROW_COUNTS)
def test_segment_gram(library, dtype, row_count):
    for name, segments in LAYOUTS.items():
        if name == "one big" and row_count in (13, 16, 20) and not ON_GPU:
            continue  # the emulation takes seconds: of the large tiles, 17 rows will do
        rows = random_rows(dtype, row_count, segments[-1])
        options = [{"block_count": 5, "small_segment": 700}]
        if name == "mixed" and row_count < 10:
            options += [{"block_count": 1, "small_segment": 700}]
        if name == "unaligned":
            options += [{"offset": 1}, {"row_stride": int(segments[-1]) + 2}]
        for each in options:
            gram = library.segment_gram(rows, segments, **each)
            oracle.assert_gram(gram, rows, segments, COMPUTE[dtype.name])


# ---- weighted sum --------------------------------------------------------------------------------


@pytest.mark.parametrize("row_count", ROW_COUNTS)
def test_segment_weighted_sum(library, dtype, row_count):
    for segments in LAYOUTS.values():
        rows = random_rows(dtype, row_count, segments[-1])
        c = np.random.default_rng(1).standard_normal((len(segments) - 1, row_count))
        for arguments in (
            {"block_count": 1},
            {"block_count": 5, "small_segment": 50},
            {"offsets": (1, 0)},
            {"offsets": (0, 1)},
            {"row_stride": int(segments[-1]) + 1},
        ):
            combined = library.segment_weighted_sum(rows, c, segments, **arguments)
            oracle.assert_weighted(combined, rows, c, segments, COMPUTE[dtype.name])


# ---- plans ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "segments",
    [
        LAYOUTS["mixed"],
        offsets_of(np.random.default_rng(3).integers(0, 5000, 4000)),
        offsets_of(10 ** np.random.default_rng(4).uniform(0, 8, 300)),
        np.array([0, 5, 5 + 2**35]),
    ],
    ids=["mixed", "4000 segments", "1 to 10^8", "2^35"],
)
def test_pieces_cover_every_element_once(library, emulate_device, segments):
    emulate_device(multiprocessors=132)
    for block_count in (0, 1, 5, 1000):
        plan = library.plan(
            SEGMENT_WEIGHTED_SUM, TYPES["float16"], 2, segments, block_count=block_count
        )
        pieces = plan.pieces(segments[-1])
        in_order = np.sort(pieces, order="begin")
        assert in_order["begin"][0] == 0 and in_order["end"][-1] == segments[-1]
        np.testing.assert_array_equal(in_order["begin"][1:], in_order["end"][:-1])
        lengths = in_order["end"] - in_order["begin"]
        assert (0 < lengths).all() and (lengths < 2**31).all()  # 32-bit indices inside a piece
        assert (segments[in_order["segment"]] <= in_order["begin"]).all()
        assert (in_order["end"] <= segments[in_order["segment"] + 1]).all()


@pytest.mark.skipif(ON_GPU, reason="it passes memory of the host to the kernel")
def test_elements_behind_2_to_the_31(library):
    """Only the ends of the first segment's pieces are computed: all of it would take minutes."""
    begin, tail = 2**31 + 64, 17
    segments = np.array([0, begin, begin + tail])
    rows = np.zeros((2, begin + tail), np.float16)  # 8 GB of which a few pages are touched
    rows[:, begin:] = random_rows(np.float16, 2, tail)
    plan = library.plan(SEGMENT_WEIGHTED_SUM, TYPES["float16"], 2, segments, block_count=4)
    pieces = plan.pieces(segments[-1])
    huge = pieces["segment"] == 0
    pieces["begin"][huge] = pieces["end"][huge] - 8
    plan.map.write(plan.map_bytes)
    c = library.allocate(32)
    c.write(np.array([[1.0, 1.0], [2.0, -1.0]]))
    combined = np.zeros(begin + tail, np.float16)
    pointers = [rows.ctypes.data, begin + tail, c.pointer, combined.ctypes.data]
    library.check(
        library.c.adasum_segment_weighted_sum(plan.handle, plan.map.pointer, *pointers, None)
    )
    last = np.array([[2.0, -1.0]])
    oracle.assert_weighted(combined[begin:], rows[:, begin:], last, [0, tail], COMPUTE["float16"])
