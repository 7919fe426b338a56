"""What layers may do under other strategies without an error, and should not: fixed or refused."""

import numpy as np
import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 has no float8, and other losses

from scenarios import layers as scenarios
from scenarios import on


@on("2x1")
def test_float8_scales_are_those_of_the_whole_batch(group):
    expected = scenarios.fit_with_float8(None)
    for actual in group.run(scenarios.fit_with_float8):
        for name in ("inputs_scale", "inputs_amax_history"):
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-6, err_msg=name)
        for name in ("kernel_scale", "kernel_amax_history"):
            np.testing.assert_allclose(actual[name], expected[name], rtol=0.05, err_msg=name)


@on("1x2", "2x1")
def test_a_replica_whose_rows_are_masked_adds_nothing_to_moving_moments(group):
    """With momentum 0.5, it keeps its moving moments, and so half of the change is left."""
    expected = scenarios.moments_of_masked_rows(None)
    for actual in group.run(scenarios.moments_of_masked_rows):
        for name, initial in (("weight2", 0.0), ("weight3", 1.0)):
            half = (expected[name] + initial) / 2
            np.testing.assert_allclose(actual[name], half, rtol=1e-4, err_msg=name)


@on("1x2", "2x1")
def test_all_weights_are_equal_after_each_combination(group):
    for actual in group.run(scenarios.train_with_local_steps):
        assert actual["checked"].tolist() == [3, 7]
