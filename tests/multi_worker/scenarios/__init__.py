"""What worker processes run for the tests with workers, and what all of these tests share."""

import numpy as np
import pytest


def on(*topologies):
    """Run a test on groups of workers x devices of each, such as "2x1"."""
    return pytest.mark.parametrize("group", topologies, indirect=True)


def assert_close(results, expected, **tolerance):
    """Every worker returns the expected arrays; without a tolerance, the same numbers."""
    for actual in results:
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(
                actual[name], value, err_msg=name, **(tolerance or {"rtol": 0})
            )
