"""As many replicas as one process can have."""

import numpy as np
import pytest
from scenarios import aggregation, assert_close, basics, on
from test_aggregation import by_plan


@on("1x16", pytest.param("1x32", marks=pytest.mark.slow))
@pytest.mark.version_independent
def test_many_logical_devices_train(group):
    y = np.arange(1, 4 * group.replicas + 1).reshape(group.replicas, 4)
    results = group.run(basics.train_on_disjoint_features, timeout=240)
    assert_close(results, {"weight0": 2 * y.mean(axis=1, keepdims=True)}, rtol=1e-6)


@pytest.mark.slow
@on("2x12")
@pytest.mark.version_independent
def test_many_devices_on_several_workers(group):
    """TensorFlow's all-to-all fails with so many: theirs is made of several."""
    vectors = aggregation.one_gradient(group.replicas)
    for plan in ([24], [2, 12]):
        results = group.run(aggregation.reduce_one_by_plan, radix_plan=plan, timeout=240)
        expected = by_plan(vectors.astype("float64"), plan)
        for copies in results:
            for copy in copies.values():
                np.testing.assert_allclose(copy, expected, rtol=0, atol=4e-7 * abs(vectors).max())
                np.testing.assert_array_equal(copy, results[0]["0.0"])
