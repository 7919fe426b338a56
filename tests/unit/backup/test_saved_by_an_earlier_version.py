"""Files that an older tf_adasum has written load, and training goes on with the same numbers."""

import json
import os
import pathlib
import sys
import zipfile

import numpy as np
import pytest
from support import keras_versions
from support.launching import output_of

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
SCRIPT = GOLDEN / "saved_by_an_earlier_version.py"
ARCHIVE = GOLDEN / f"saved_by_an_earlier_version_keras{2 if keras_versions.IS_KERAS_2 else 3}.zip"

# Two steps in float32, on processors that multiply matrices in another order.
TWO_STEPS = {"rtol": 1e-5, "atol": 1e-6}


def gone_on(folder):
    """What today's package makes of the files, on two replicas, which take their own process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    printed = output_of(sys.executable, SCRIPT, "resume", folder, env=environment, stderr=None)
    return json.loads(printed.splitlines()[-1])


def assert_same(actual, expected, where, **tolerance):
    """Names, order and shapes of all variables; and their values."""
    assert [each[:2] for each in actual] == [each[:2] for each in expected], where
    for (path, _, own), (*_, other) in zip(actual, expected, strict=True):
        tolerance = {"rtol": 0} | tolerance
        np.testing.assert_allclose(own, other, err_msg=f"{where}: {path}", **tolerance)


@pytest.mark.slow
def test_goes_on_from_files_of_old(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        numbers = json.loads(archive.read("numbers.json"))
        archive.extractall(tmp_path)
    actual = gone_on(tmp_path)
    for training, forms in numbers["going_on"].items():
        for form, expected in forms.items():
            where, own = f"{training}, {form}", actual[training][form]
            assert_same(own["restored"], expected["restored"], where)
            np.testing.assert_allclose(own["losses"], expected["losses"], **TWO_STEPS)
            assert_same(own["end"], expected["end"], where, **TWO_STEPS)
            if form != "backup":  # in which each replica has its own statistics
                values = [each[2] for each in own["restored"]]
                assert values == [each[2] for each in numbers["saved"][training]], where
