"""Every optimizer of Keras, with each of its options, against one process."""

import inspect

import keras
import numpy as np
import pytest
from scenarios import on
from scenarios import optimizers as scenarios
from support import keras_versions

OPTIMIZERS = [
    name
    for name, value in vars(keras.optimizers).items()
    if inspect.isclass(value)
    and issubclass(value, keras.optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
]

# Some roundings to float32 of numbers near 1, and of gradients that are divided by their size.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}

NOT_IN_KERAS_2 = {
    "loss_scale_factor": keras_versions.needs_loss_scale_factor,
    **{
        name: keras_versions.needs_accumulation
        for name in scenarios.OPTIONS
        if "accumulate" in name
    },
}

OF_SOME_VERSIONS = {
    "Nadam": keras_versions.needs_nadam,
    "Muon": keras_versions.needs_keras("3.13", "its Muon runs under no tf.distribute strategy"),
}


def assert_equals_one_process(group, name, option):
    expected = scenarios.reference(group.replicas, name, option)
    for copies in group.run(scenarios.apply, name=name, option=option):
        for copy, actual in copies.items():
            value = expected[int(copy.partition(".")[0])]
            np.testing.assert_allclose(actual, value, **TOLERANCE, err_msg=copy)


@on("1x2")
@pytest.mark.parametrize(
    "option",
    keras_versions.marked(
        ["plain", "global_clipnorm", "accumulate", "ema_overwrite", "mixed_precision"],
        {**NOT_IN_KERAS_2, "plain": pytest.mark.always},
    ),
)
@pytest.mark.parametrize("name", keras_versions.marked(OPTIMIZERS, OF_SOME_VERSIONS))
def test_every_optimizer(group, name, option):
    assert_equals_one_process(group, name, option)


@on("1x2", "2x2")
@pytest.mark.parametrize("option", keras_versions.marked(scenarios.OPTIONS, NOT_IN_KERAS_2))
def test_every_option(group, option):
    assert_equals_one_process(group, "AdamW", option)
