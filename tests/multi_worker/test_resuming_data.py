"""A killed training resumes with every row of its epoch once, and with the same bits."""

import numpy as np
import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 backs up all workers by itself

from scenarios import on
from scenarios import resuming_data as scenarios


def run(group, kind, place, stage, folder):
    arguments = {"kind": kind, "place": place, "folder": str(folder)}
    return group.run(scenarios.train, stage=stage, **arguments)


def compare(resumed, unbroken, devices):
    """Compare the rows of the steps from the backup on, and the weights, on each worker."""
    for actual, expected in zip(resumed, unbroken, strict=True):
        begin = int(actual["begin"])
        # The steps that the training skips are not run. The replicas of a step run in any order.
        rows, of_unbroken = actual["rows"], expected["rows"][begin:]
        for own in (rows, of_unbroken):
            own[:] = np.sort(own.reshape([-1, devices * own.shape[1]]), axis=1).reshape(own.shape)
        np.testing.assert_array_equal(rows, of_unbroken)
        for name in expected.keys() - {"rows", "begin"}:
            np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


@on("1x2", "2x1")
@pytest.mark.feature("resume in the same order of rows: datasets, PyDatasets, generators, arrays")
@pytest.mark.parametrize("place", scenarios.PLACES)
@pytest.mark.parametrize("kind", scenarios.DATA)
def test_resumes_with_the_same_rows(group, tmp_path, kind, place):
    unbroken = run(group, kind, place, "unbroken", tmp_path)
    run(group, kind, place, "killed", tmp_path)
    compare(run(group, kind, place, "resumed", tmp_path), unbroken, group.devices)
