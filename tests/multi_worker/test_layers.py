"""What layers may do under other strategies without an error, and should not: fixed or refused."""

import numpy as np
import pytest

pytest.importorskip("keras", minversion="3")  # Keras 2 has no float8, and other losses

from scenarios import assert_close, on
from scenarios import layers as scenarios


@on("2x1")
@pytest.mark.feature('`add_loss` of a `keras.losses` object with `aggregation="mean"`')
def test_an_added_loss_under_the_mean_is_that_of_one_device(group):
    expected = scenarios.fit_with_added_loss(None, "function")
    for kind in ("function", "object", "half of an object"):
        assert_close(group.run(scenarios.fit_with_added_loss, kind=kind), expected, rtol=1e-5)


@on("2x1")
@pytest.mark.feature("float8: scales of the whole batch")
def test_float8_scales_are_those_of_the_whole_batch(group):
    expected = scenarios.fit_with_float8(None)
    for actual in group.run(scenarios.fit_with_float8):
        for name in ("inputs_scale", "inputs_amax_history"):
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-6, err_msg=name)
        for name in ("kernel_scale", "kernel_amax_history"):
            np.testing.assert_allclose(actual[name], expected[name], rtol=0.05, err_msg=name)


@on("2x1")
@pytest.mark.feature("a batch axis other than dimension 0: an error")
def test_another_batch_axis_is_refused_on_all_workers(group):
    for messages in group.run(scenarios.predict_along_axes):
        assert "Received: an input of the shape (5, None, 3)" in str(messages["input"])
        assert "Received: an output of the shape (2, None)" in str(messages["output"])
        assert str(messages["a part of fixed length"]) == ""
        assert str(messages["two of unknown length"]) == ""
