"""A TensorFlow and a Keras that are newer than those known, and have moved something."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras", minversion="3")  # of Keras 2 there is no newer one

from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.saving import saving_lib
from keras.src.trainers.trainer import Trainer

import tf_adasum
from tf_adasum._version import STACKS
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.compat.keras.keras3.private_names import MULTI_OPTIMIZER
from tf_adasum.compat.tensorflow.private_names import CollectiveReplicaLauncher
from tf_adasum.errors import see

PACKAGE = Path(tf_adasum.__file__).parent

# It takes away what only features need, and trains on two replicas.
PROGRAM = """
import contextlib, io, json, warnings
import keras, numpy as np, tensorflow as tf
from keras.src.backend.common import masking
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters import py_dataset_adapter
from tensorflow.python.data.ops import scan_op

keras.__version__ = "3.99.0"
for owner, name in [
    (masking, "set_keras_mask"),
    (saving_lib, "get_attr_skipset"),
    (py_dataset_adapter, "PyDatasetAdapter"),
    (scan_op, "_ScanDataset"),
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
said = io.StringIO()
with contextlib.redirect_stdout(said):
    from tf_adasum import doctor
    code = doctor.main([])
messages = [str(warning.message) for warning in caught]
print("OUTCOME" + json.dumps([losses, messages, code, said.getvalue().splitlines()]))
"""


@pytest.fixture(scope="module")
def outcome():
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=PACKAGE.parent,
    )
    assert "OUTCOME" in ended.stdout, ended.stderr
    return json.loads(ended.stdout.partition("OUTCOME")[2])


def one(texts, *parts):
    """The one of some texts that has all parts."""
    (found,) = (text for text in texts if all(part in text for part in parts))
    return found


def test_it_trains_without_the_features_that_are_off(outcome):
    losses, *_ = outcome
    assert losses[-1] < losses[0]


def test_one_warning_names_what_is_newer(outcome):
    assert one(outcome[1], "not been tested with Keras 3.99.0", STACKS)


def test_one_warning_names_the_features_of_each_library(outcome):
    of_keras = one(outcome[1], "Keras 3.99.0 lacks functions that some features need")
    assert "- compile(jit_compile=True)" in of_keras and "masking.set_keras_mask)" in of_keras
    assert "- the same order on all workers for a keras.utils.PyDataset" in of_keras
    assert "- saving on one worker within strategy.scope()" in of_keras
    lines = of_keras.splitlines()
    assert len([line for line in lines if MULTI_OPTIMIZER not in line]) == 5  # not in older ones
    of_tensorflow = one(outcome[1], "TensorFlow", "lacks functions that some features need")
    assert "(tensorflow.python.data.ops.scan_op._ScanDataset)\n" in of_tensorflow
    assert of_tensorflow.endswith(see("TFA-103"))


def test_a_step_says_that_it_runs_without_xla(outcome):
    assert one(outcome[1], "runs the train_step", "has no keras.src.backend.common.masking")


def test_the_doctor_names_them_and_does_not_fail(outcome):
    _, _, code, lines = outcome
    assert code == 0
    assert one(lines, "warn  keras", "3.99.0 is newer than 3.15, the newest tested version")
    for feature in (
        "compile(jit_compile=True)",
        "PyDataset",
        "saving on one worker",
        "_ScanDataset",
    ):
        assert one(lines, "warn  hooks         off: ", feature)


def test_what_is_needed_is_named_all_at_once(monkeypatch):
    monkeypatch.delattr(TFOptimizer, "_all_reduce_sum_gradients")
    monkeypatch.delattr(Trainer, "compile")
    monkeypatch.delattr(saving_lib, "get_attr_skipset")  # of a feature
    with pytest.raises(ImportError, match=r"lacks functions that tf_adasum needs: ") as raised:
        keras_compat.install()
    message = str(raised.value)
    assert "TFOptimizer._all_reduce_sum_gradients" in message and "Trainer.compile" in message
    assert "get_attr_skipset" not in message
    assert message.endswith(
        f"Install a supported version: pip install 'keras>=3.11,<3.16' {see('TFA-103')}"
    )


def test_methods_that_are_overridden_are_needed(monkeypatch):
    for name in ("_all_gather", "_next_instance_key"):
        monkeypatch.delattr(CollectiveReplicaLauncher, name)
    names = r"Launcher\._all_gather, .*Launcher\._next_instance_key\. .*tensorflow-cpu>=2\.16"
    with pytest.raises(ImportError, match=names):
        tensorflow_compat.hooks.install()


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


def test_what_has_a_feature_says_it_in_words():
    for hooks in (keras_compat.hooks, tensorflow_compat.hooks):
        features = [hook.feature for hook in hooks if hook.feature]
        assert features and all(len(feature) > 10 for feature in features)
        assert any(hook.feature is None for hook in hooks)
