"""`predict` gives what one process gives, and calls on a batch what `fit` and `evaluate` give."""

import numpy as np
import pytest
from scenarios import assert_close, on
from scenarios import predict as scenarios

# Rows/batch size: what the replicas can share evenly, what leaves some of them with fewer rows,
# and what leaves some of them with none.
ARRAYS = ["500/64", "33/32", "35/32", "100/30", "7/32", "1/32"]

# Means of few float32 numbers in another order, and three updates by such means.
FLOAT32_MEANS = {"rtol": 1e-5, "atol": 1e-6}


@on("1x2", "2x1", "3x2")
def test_predict_gives_every_row_once_and_in_order(group):
    cases = {"arrays": ARRAYS, "datasets": ["101/32"], "on_batch": [1, 12, 13]}
    for predicted in group.run(scenarios.predict, **cases):
        assert len(predicted) == 2 * (len(ARRAYS) + 2 + 3)
        for case, rows in predicted.items():
            expected = scenarios.rows_from(1, int(case.split("/")[0].split()[-1]))
            np.testing.assert_array_equal(rows, np.repeat(expected, rows.shape[1], axis=1), case)


@on("1x2", "2x2")
@pytest.mark.keras3_only("Keras 2 traces recurrent layers in another way")
def test_a_stateful_model_keeps_its_state(group):
    assert_close(group.run(scenarios.generate), scenarios.generate(None), **FLOAT32_MEANS)


@on("1x2", "2x2")
@pytest.mark.parametrize("way", ["sample_weight", "class_weight"])
def test_calls_on_a_batch_equal_fit_and_evaluate(group, way):
    """Each replica gets its part of the batch, as `fit` hands it out; logs cover all rows."""
    fitted, on_batch = (group.run(scenarios.train, way=way, on_batch=b) for b in (False, True))
    assert_close(on_batch, fitted[0], **FLOAT32_MEANS)
