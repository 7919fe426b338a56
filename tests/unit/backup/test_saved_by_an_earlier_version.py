"""Files that an older tf_adasum has written load: every variable has its name, place and bits.

tests/multi_worker/test_elastic.py shows that training goes on from such files as if unbroken.
"""

import json
import os
import pathlib
import sys
import zipfile

import pytest
from support import keras_versions
from support.launching import output_of

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
SCRIPT = GOLDEN / "saved_by_an_earlier_version.py"
ARCHIVE = GOLDEN / f"saved_by_an_earlier_version_keras{2 if keras_versions.IS_KERAS_2 else 3}.zip"


@pytest.mark.slow
def test_files_of_old_are_restored(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        numbers = json.loads(archive.read("numbers.json"))
        archive.extractall(tmp_path)
    # On two replicas, which take their own process.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    printed = output_of(sys.executable, SCRIPT, tmp_path, env=environment, stderr=None)
    actual = json.loads(printed.splitlines()[-1])
    for training, forms in numbers["going_on"].items():
        for form, expected in forms.items():
            assert actual[training][form] == expected["restored"], (training, form)
            if form != "backup":  # in which each replica has its own statistics
                saved = [values for *_, values in numbers["saved"][training]]
                assert [values for *_, values in actual[training][form]] == saved, (training, form)
