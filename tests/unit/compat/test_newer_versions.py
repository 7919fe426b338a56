"""A TensorFlow and a Keras that are newer than those known, and have moved something."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from support.launching import output_of

pytest.importorskip("keras", minversion="3")  # of Keras 2 there is no newer one

import tf_adasum
from tf_adasum._version import SUPPORTED_VERSIONS, newer
from tf_adasum.compat.keras.private_names_keras3 import MULTI_OPTIMIZER

PACKAGE = Path(tf_adasum.__file__).parent

# It removes what only features need, and trains.
PROGRAM = """
import contextlib, io, json, warnings
import keras, numpy as np, tensorflow as tf
from keras.src.backend.common import masking
from keras.src.trainers.data_adapters import py_dataset_adapter
from tensorflow.python.data.ops import multi_device_iterator_ops

keras.__version__ = "3.99.0"
for owner, name in [
    (masking, "set_keras_mask"),
    (py_dataset_adapter, "PyDatasetAdapter"),
    (multi_device_iterator_ops, "_create_device_dataset"),
]:
    delattr(owner, name)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import tf_adasum
    for _ in range(2):
        strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=True)
    x = np.ones([8, 3], "float32")
    losses = model.fit(x, x.sum(1), batch_size=4, epochs=3, verbose=0).history["loss"]
with contextlib.redirect_stdout(io.StringIO()) as printed:
    from tf_adasum import doctor
    code = doctor.main([])
messages = [str(warning.message) for warning in caught]
print("OUTCOME" + json.dumps([losses, messages, code, printed.getvalue().splitlines()]))
"""


@pytest.fixture(scope="module")
def outcome():
    printed = output_of(sys.executable, "-c", PROGRAM, cwd=PACKAGE.parent)
    return json.loads(printed.rpartition("OUTCOME")[2].splitlines()[0])


def one(texts, *parts):
    """The one of some texts that has all parts."""
    (found,) = (text for text in texts if all(part in text for part in parts))
    return found


def test_it_trains_without_the_features_that_are_off(outcome):
    losses, *_ = outcome
    assert losses[-1] < losses[0]


def test_one_warning_names_the_features_of_each_library(outcome):
    _, messages, _, _ = outcome
    untested = newer(tf.__version__, "3.99.0")
    assert one(messages, f"not been tested with {untested}", SUPPORTED_VERSIONS)
    of_keras = one(messages, "Keras 3.99.0 lacks functions that some features need")
    assert "- compile(jit_compile=True)" in of_keras and "masking.set_keras_mask)" in of_keras
    assert "- the same order on all workers for a keras.utils.PyDataset" in of_keras
    lines = of_keras.splitlines()
    assert len([line for line in lines if MULTI_OPTIMIZER not in line]) == 4  # not in older ones
    of_tensorflow = one(messages, "TensorFlow", "lacks functions that some features need")
    assert "multi_device_iterator_ops._create_device_dataset)\n" in of_tensorflow
    assert one(messages, "runs the train_step", "has no keras.src.backend.common.masking")


def test_the_doctor_names_them_and_does_not_fail(outcome):
    _, _, code, lines = outcome
    assert code == 0
    assert one(lines, "warn  keras", "3.99.0 is newer than the newest tested version")
    for feature in "compile(jit_compile=True)", "PyDataset", "_create_device_dataset":
        assert one(lines, "warn  hooks         off: ", feature)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is here")
def test_a_backend_that_is_not_installed_is_named():
    done = subprocess.run(
        [sys.executable, "-c", "import tf_adasum; tf_adasum.optimizers"],
        env=os.environ | {"KERAS_BACKEND": "torch"},
        cwd=PACKAGE.parent,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert done.stderr.splitlines()[-1].startswith("ImportError: Keras is set to the backend torch")
    assert "KERAS_BACKEND=tensorflow" in done.stderr


def test_models_of_tf_keras_are_refused():
    """Their `fit` calls `strategy.run` with a function of tf_keras; tf_keras itself is not here."""
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])

    def run_step():
        raise AssertionError("called")

    run_step.__module__ = "tf_keras.src.engine.training"
    with pytest.raises(NotImplementedError, match="Build the model with `import keras`"):
        strategy.run(run_step)
