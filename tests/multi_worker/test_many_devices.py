"""As many replicas as one process can have."""

import numpy as np
import pytest
from scenarios import aggregation, basics
from test_aggregation import assert_combined, by_plan


@pytest.mark.parametrize(
    "group", ["1x16", pytest.param("1x32", marks=pytest.mark.slow)], indirect=True, scope="module"
)
@pytest.mark.one_stack
def test_many_logical_devices_train(group):
    y = np.arange(1, 4 * group.replicas + 1).reshape(group.replicas, 4)
    (actual,) = group.run(basics.train_on_disjoint_features, timeout=240)
    np.testing.assert_allclose(actual["weight0"], 2 * y.mean(axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.feature("more than eleven devices on each of several workers")
@pytest.mark.parametrize("group", ["2x12"], indirect=True, scope="module")
@pytest.mark.one_stack
def test_many_devices_on_several_workers(group):
    """TensorFlow's all-to-all fails with so many: theirs is made of several."""
    for plan in ([24], [2, 12]):
        results = group.run(aggregation.reduce_by_plan, radix_plan=plan, timeout=240)
        assert_combined(results, group, lambda vectors, plan=plan: by_plan(vectors, plan))
    size = 96_000
    ((first, *_), *_) = [each["sent"] for each in group.run(aggregation.elements_sent, size=size)]
    assert first <= 2 * size * (1 + 1 / 3)  # 3 classes of 4 on each worker
