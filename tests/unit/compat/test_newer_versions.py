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


def test_it_trains_without_the_features_that_are_off_and_names_them():
    printed = output_of(sys.executable, "-c", PROGRAM, cwd=PACKAGE.parent)
    outcome = json.loads(printed.rpartition("OUTCOME")[2].splitlines()[0])
    losses, messages, code, lines = outcome
    assert losses[-1] < losses[0] and code == 0, "the doctor only warns"

    def said(texts, *parts):
        return len([text for text in texts if all(part in text for part in parts)])

    assert said(messages, newer(tf.__version__, "3.99.0"), SUPPORTED_VERSIONS) == 1
    features = "- compile(jit_compile=True)", "- the same order on all workers for a"
    assert said(messages, "Keras 3.99.0", *features, "masking.set_keras_mask") == 1
    assert said(messages, "TensorFlow", "._create_device_dataset") == 1
    assert said(messages, "runs the train_step", "masking") == 1
    assert said(lines, "warn  keras", "3.99.0") == 1
    for name in "compile(jit_compile=True)", "PyDataset", "_create_device_dataset":
        assert said(lines, "warn  hooks         off: ", name) == 1


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
