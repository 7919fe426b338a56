"""The names that internal members of a strategy had earlier."""

import pytest

import tf_adasum
from tf_adasum.compat.base_strategy import FORMERLY_PUBLIC


def test_former_names_work_with_a_warning():
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    for name in FORMERLY_PUBLIC:
        with pytest.warns(DeprecationWarning, match=f"strategy.{name} is deprecated") as caught:
            assert getattr(strategy, name) == getattr(strategy, f"_{name}")
        assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="no attribute 'worker'"):
        _ = strategy.worker
