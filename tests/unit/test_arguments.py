"""Which values are numbers, what is said of one that is not, and which arguments are refused."""

import functools
import math
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from support import keras_versions

from tf_adasum import arguments, callbacks, optimizers, rules, schedules

INFINITY, SGD = math.inf, keras.optimizers.SGD


@pytest.mark.parametrize("value", [0, -1, 0.5, 1e308, Fraction(1, 3), np.float32(2), np.int64(2)])
def test_numbers(value):
    assert arguments.is_number(value)


@pytest.mark.parametrize(
    "value",
    [
        *(True, None, "1", 1j, [1], np.bool_(True), np.ones([])),
        *(math.nan, -INFINITY, np.float16(INFINITY), 10**400),
    ],
    ids=repr,
)
def test_what_is_no_number(value):
    assert not arguments.is_number(value)
    with pytest.raises(ValueError, match=r"^`rate` must be a number\. Received: rate="):
        arguments.check_number("rate", value, "must be a number")
    with pytest.raises(ValueError, match=r"^`rate` must be below 1\. Received: rate=1$"):
        arguments.check_number("rate", 1, "must be below 1", below=1)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(*[st.integers(-2, 2) | st.floats(-2, 2)] * 3)
def test_bounds(value, least, most):
    assert arguments.is_number(value, at_least=least, at_most=most) == (least <= value <= most)
    assert arguments.is_number(value, above=least, below=most) == (least < value < most)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "1", math.nan, np.int64(1)], ids=repr)
def test_counts(value):
    arguments.check_count("every", 10**400)
    with pytest.raises(ValueError, match=r"`every` must be an int of 1 or more\. Received: every="):
        arguments.check_count("every", value)


def adascale(**wrong):
    return optimizers.AdaScale(SGD(), **wrong)


warmup = functools.partial(
    schedules.LinearScalingWarmup, learning_rate=0.1, scale=2, total_steps=10
)
backup = functools.partial(callbacks.BackupAndRestore, "folder")

WRONG = [
    (warmup, "learning_rate", ["0.1", -0.1, abs]),
    (warmup, "scale", [0.5]),
    (warmup, "total_steps", [0]),
    (warmup, "warmup", [-0.1, 1.1]),
    (warmup, "iterations", [0, 2.5]),
    (adascale, "scale", [0.99, math.inf, "4"]),
    (lambda scale: adascale().set_scale(scale), "scale", [0.99]),
    (adascale, "smoothing", [-0.1, 1]),
    (
        lambda local_steps: optimizers.DeltaAdasum(SGD(), local_steps=local_steps),
        "local_steps",
        [0, 1.0],
    ),
    (optimizers.LAMB, "beta_1", [1.0]),
    (optimizers.LAMB, "beta_2", [-0.1]),
    (optimizers.LAMB, "epsilon", [-1e-9]),
    (optimizers.LAMB, "weight_decay", [math.inf]),
    (optimizers.LAMB, "exclude_from_weight_decay", [["bias", "("]]),
    (optimizers.LAMB, "exclude_from_layer_adaptation", [3]),
    (rules.AdaCons, "momentum", [1, -0.1]),
    (rules.AdaCons, "rescale", [None]),
    (callbacks.GainTracker, "log_freq", [0]),
    (callbacks.OrthogonalityTracker, "log_freq", [1.0]),
    (callbacks.ReplicaCheck, "check_freq", [True]),
    (callbacks.StopAtScaleInvariantStep, "total", [0]),
    (callbacks.ElasticScale, "schedule", [{1: 4}, [1, 2]]),
    (lambda scale: callbacks.ElasticScale({0: 1, 2: scale}), "scale", [math.nan]),
    (lambda scale: callbacks.ElasticScale(lambda epoch: scale), "scale", [0.5]),
    (callbacks.OnFirstWorker, "callback", [print]),
    pytest.param(backup, "save_freq", [True, -1], marks=keras_versions.needs_own_backups),
]


@pytest.mark.parametrize(("make", "name", "values"), WRONG)
def test_wrong_values_are_refused(make, name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"^`{name}` (of \w+ )?must (be|have) ") as caught:
            make(**{name: value})
        assert str(caught.value).endswith(f"Received: {name}={value!r}")
