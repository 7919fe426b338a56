"""Samples of the rows of each worker's arrays, which show whether workers have the same rows.

Shape legend: W is the number of workers.
"""

import os
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# The workers compare up to ROWS rows of each of the first ARRAYS arrays. For each row, they compare
# one number: the weighted mean of about NUMBERS numbers of the row.
ARRAYS, ROWS, NUMBERS = 4, 16, 4096

# Two means count as equal if they differ by at most TOLERANCE times the range of the rows' means,
# plus ROUNDING times the largest of these means. The reason is that machines round differently.
TOLERANCE, ROUNDING = 1e-3, 1e-6


class RowSamples:
    """Samples of the arrays of all workers, which show whether the workers have the same rows.

    Args:
        values: ``[W, ARRAYS, 2 + ROWS]``, samples of the tensors of each worker; NaN for each
            array and row that a worker does not have.

    Attributes:
        equal: boolean ``[W, ARRAYS]``: whether each worker's array equals the array of worker 0.
    """

    def __init__(self, values: np.ndarray):
        first = values[:1]
        rows = np.nan_to_num(np.where(np.isnan(first), first[:, :, 2:3], first)[:, :, 2:])
        self._spread = np.ptp(rows, axis=2, keepdims=True)
        size = np.abs(rows).max(axis=2, keepdims=True)
        allowed = np.where(np.arange(2 + ROWS) < 2, 0, TOLERANCE * self._spread + ROUNDING * size)
        self._values, self._are_names = values, values[0, :, 1] == 1
        # Before NumPy 2, `np.isclose` takes no array of tolerances.
        is_close = (np.abs(values - first) <= allowed) | (values == first)
        self.equal = (is_close | (np.isnan(values) & np.isnan(first))).all(axis=2)

    def of_these(self, arrays: np.ndarray) -> "RowSamples":
        """Return the samples of some arrays only.

        Args:
            arrays: boolean ``[ARRAYS]``: which arrays to keep.
        """
        return RowSamples(np.where(arrays[:, None], self._values, np.nan))

    @property
    def all_equal(self) -> bool:
        """Whether all arrays are the same on all workers."""
        return bool(self.equal.all())

    @property
    def rows_differ(self) -> bool:
        """Whether workers have different rows.

        One array that is the same on all workers is enough to conclude that the workers have the
        same rows, because other arrays may contain random noise. But strings contain no noise, so
        if an array of strings differs, the rows differ. If all samples of an array are the same
        number, the array is not enough.
        """
        equal = self.equal.all(axis=0)
        if equal.all():
            return False
        if (self._are_names & ~equal).any():
            return True
        says_something = self._spread[0, :, 0] > 0
        return not (equal & says_something).any()


def samples_of(tensors: Sequence[Any]) -> np.ndarray:
    """Return the numbers that workers compare for each array, ``[ARRAYS, 2 + ROWS]``.

    For each array, the first number is the number of its rows. The second number is 1 for an array
    of strings, and 0 otherwise. The other numbers are the means of up to ROWS rows.
    """
    samples = np.full([ARRAYS, 2 + ROWS], np.nan)
    for sample, tensor in zip(samples, tensors, strict=False):
        count = tensor.shape[0] if len(tensor.shape) else 1
        sample[:2] = count, tf.as_dtype(tensor.dtype) == tf.string
        chosen = np.unique(np.linspace(0, count - 1, min(count, ROWS)).astype(int))
        for index, row in enumerate(chosen):
            sample[2 + index] = _mean(np.asarray(tensor[int(row)] if len(tensor.shape) else tensor))
    return samples


def _mean(row: np.ndarray) -> float:
    numbers = row.ravel()[:: max(1, row.size // NUMBERS)]
    if numbers.dtype.kind in "OSU":  # only the last part of a path, because folders may differ
        return float(np.mean([zlib.crc32(os.path.basename(_bytes(text))) for text in numbers]))
    if numbers.dtype.kind == "c":
        numbers = np.abs(numbers)
    # With equal weights, all one-hot rows would have the same mean.
    weights = np.linspace(0.5, 1.5, numbers.size)
    numbers = np.nan_to_num(np.asarray(numbers, np.float64))
    return float(numbers @ weights / numbers.size) if numbers.size else 0.0


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def arrays_of(batch: Any) -> list[np.ndarray]:
    """Return the arrays of a batch that can be compared: numbers and texts."""
    flat = [each for each in tf.nest.flatten(batch) if each is not None]
    arrays = [np.asarray(each) for each in flat if hasattr(each, "__array__") or np.ndim(each)]
    return [each for each in arrays if each.dtype.kind in "biufOSU"]
