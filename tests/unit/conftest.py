"""Fixtures of the tests that run on both backends and all dtypes."""

import gc

import pytest
import tensorflow as tf
from support import keras_versions

import tf_adasum
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.environment_variables import OPS
from tf_adasum.ops import library

keras_versions.make_devices()

# Packages whose tests show the same with every TensorFlow and Keras: formulas, and what workers do
# before TensorFlow starts.
VERSION_INDEPENDENT_PACKAGES = ("aggregation", "cluster", "launch", "health")

# Packages whose tests are of threads that wait for each other, for seconds.
PACKAGES_OF_THREADS = ("cluster", "doctor", "launch", "transport", "health")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name in VERSION_INDEPENDENT_PACKAGES:
            item.add_marker(pytest.mark.version_independent)


# What is imported stays: a full collection need not look at it.
gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def garbage_is_collected():
    """Free what the tests of a file have left, before it gets old.

    An iterator of tf.data waits, when it is freed, until its tuning looks whether it was cancelled:
    TensorFlow wakes the tuning a moment too early (seen with 2.21). The tuning looks ever more
    seldom, in the end once a minute.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def collections_wait(request):
    """Keep such an iterator from being freed on one of these threads."""
    if request.path.parent.name not in PACKAGES_OF_THREADS:
        yield
        return
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["custom", "tensorflow"])
def backend(request, monkeypatch):
    if request.param == "custom" and not library.status().loaded:
        pytest.skip(f"the compiled op is not loaded: {library.status().reason}")
    monkeypatch.setenv(OPS, request.param)
    # Stated, so that both backends are tested on machines with a GPU, too.
    with tf.device("CPU:0"):
        yield request.param


@pytest.fixture(
    params=[tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda dtype: dtype.name
)
def dtype(request):
    return request.param


@pytest.fixture(scope="module")
def strategy():
    return tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])


@pytest.fixture
def two_gradients():
    """A step of an optimizer has two gradients: see `keras_versions.gradients_per_step`."""
    with keras_versions.gradients_per_step(2):
        yield


@pytest.fixture
def unseeded():
    """TensorFlow without a global seed, which draws the seeds of datasets, before and after."""
    tensorflow_compat.hooks.install()
    tf.random.set_seed(None)
    yield
    tensorflow_compat.seed_datasets_by(None)
    tf.random.set_seed(None)
