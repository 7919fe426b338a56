"""Variables and values of dtypes that TensorFlow's collectives do not take."""

import numpy as np
import pytest
from scenarios import dtypes as scenarios


@pytest.mark.parametrize("group", ["2x2", "2x1"], indirect=True)
def test_bits_travel_and_integers_add_up(group):
    results = group.run(scenarios.travel)
    for name, dtype in scenarios.DTYPES.items():
        rows = [scenarios.bytes_of(replica, dtype) for replica in range(group.replicas)]
        gathered, numpy_dtype = np.concatenate(rows), dtype.as_numpy_dtype
        with np.errstate(over="ignore"):
            total = sum(row.view(numpy_dtype) for row in rows).astype(numpy_dtype)
        for result in results:
            for local in range(group.devices):
                np.testing.assert_array_equal(result[f"{name}.variable.{local}"], rows[0])
            np.testing.assert_array_equal(result[f"{name}.gathered"], gathered, name)
            if dtype.is_integer:
                np.testing.assert_array_equal(result[f"{name}.sum"], total.view(np.uint8), name)
            expected = [group.replicas, 2 * group.replicas]
            np.testing.assert_array_equal(result[f"{name}.counted"], expected, name)
