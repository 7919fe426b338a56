"""As many replicas as one process can have."""

import numpy as np
import pytest
from scenarios import basics


@pytest.mark.parametrize(
    "group", ["1x16", pytest.param("1x32", marks=pytest.mark.slow)], indirect=True, scope="module"
)
@pytest.mark.one_stack
def test_many_logical_devices_train(group):
    y = np.arange(1, 4 * group.replicas + 1).reshape(group.replicas, 4)
    (actual,) = group.run(basics.train_on_disjoint_features, timeout=240)
    np.testing.assert_allclose(actual["weight0"], 2 * y.mean(axis=1, keepdims=True), rtol=1e-6)
