"""The numbers by which workers compare their rows, and how far two workers' numbers may differ."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tf_adasum.workers.row_samples import ARRAYS, ROUNDING, ROWS, TOLERANCE, RowSamples, samples_of

NAN = np.nan


def test_strings_are_compared_without_their_folders():
    texts, names = (
        samples_of([np.array([[f"{folder}/a.png", f"{folder}/b.png"]])]) for folder in "xy"
    )
    assert_allclose(texts, names)
    assert texts[0, 1] == 1 and texts[0, 2] != samples_of([np.array([["a.png", "c.png"]])])[0, 2]
    as_bytes = samples_of([np.array([[b"a.png", b"b.png"]])])
    assert_allclose(texts, as_bytes)


def row_samples(*of_each_worker):
    values = np.full([len(of_each_worker), ARRAYS, 2 + ROWS], NAN)
    for sample, arrays in zip(values, of_each_worker, strict=True):
        for row, numbers in zip(sample, arrays, strict=False):
            row[: len(numbers)] = numbers
    return RowSamples(values)


@pytest.mark.parametrize(("share", "equal"), [(0.99, True), (1.01, False)])
def test_means_within_the_tolerance_are_equal(share, equal):
    other = 1000 + share * (TOLERANCE * 50 + ROUNDING * 1050)
    found = row_samples([[2, 0, 1000, 1050]], [[2, 0, other, 1050]])
    assert found.all_equal == equal and found.rows_differ != equal


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ([[2, 0, 1, 2]], [[2, 0, 1, NAN]], True),
        ([[2, 0, 1, 2]], [[3, 0, 1, 2]], True),
        # If one array is the same on all workers, and its rows differ from each other, the
        # workers have the same rows.
        ([[2, 0, 1, 2], [2, 0, 5, 6]], [[2, 0, 1, 2], [2, 0, 7, 8]], False),
        ([[2, 0, 0.2, 0.7], [2, 0, 5, 6]], [[2, 0, 0.2, 0.7], [2, 0, 7, 8]], False),
        ([[2, 0, 1, 1], [2, 0, 5, 6]], [[2, 0, 1, 1], [2, 0, 7, 8]], True),
        # Strings contain no random noise, so if they differ, the rows differ.
        ([[2, 0, 1, 2], [2, 1, 5, 6]], [[2, 0, 1, 2], [2, 1, 7, 8]], True),
    ],
    ids=["a row is missing", "counts", "varied rows", "nearly equal rows", "equal rows", "strings"],
)
def test_whether_rows_differ(first, second, differ):
    assert row_samples(first, second).rows_differ == differ
    assert row_samples(second, first).rows_differ == differ


@pytest.mark.parametrize(
    "array", [7.0, [[3 + 4j, 0]], np.zeros([2, 0]), np.zeros([0, 3]), [[NAN, 2.0]]], ids=str
)
def test_arrays_of_every_kind_equal_themselves(array):
    samples = samples_of([np.array(array)])
    assert RowSamples(np.stack([samples, samples])).all_equal
