"""Fixtures of the tests that run on both backends and all dtypes; what one stack can show."""

import pathlib

import pytest
import tensorflow as tf
from support import stacks

from tf_adasum.ops import library

stacks.make_devices()

# Rooms whose tests show the same with every TensorFlow and Keras: formulas, and what workers do
# before TensorFlow starts.
ROOMS_OF_ONE_STACK = ("aggregation", "cluster", "launch", "support", "watch")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    unit = pathlib.Path(__file__).parent
    for item in items:
        if item.path.parent.parent == unit and item.path.parent.name in ROOMS_OF_ONE_STACK:
            item.add_marker(pytest.mark.one_stack)


@pytest.fixture(params=["custom", "tensorflow"])
def backend(request, monkeypatch):
    if request.param == "custom" and not library.status().loaded:
        pytest.skip(f"the compiled op is not loaded: {library.status().reason}")
    monkeypatch.setenv(library.CHOICE_VARIABLE, request.param)
    # Stated, so that both backends are tested on machines with a GPU, too.
    with tf.device("CPU:0"):
        yield request.param


@pytest.fixture(
    params=[tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda dtype: dtype.name
)
def dtype(request):
    return request.param


@pytest.fixture
def two_gradients():
    """A step of an optimizer has two gradients: see `stacks.gradients_per_step`."""
    with stacks.gradients_per_step(2):
        yield


@pytest.fixture
def four_gradients():
    with stacks.gradients_per_step(4):
        yield
