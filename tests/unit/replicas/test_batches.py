"""Which rows of a global batch each replica gets."""

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.replicas import batches


@pytest.mark.parametrize("rows", [1, 3, 17, 18011])
@pytest.mark.parametrize(("workers", "devices"), [(1, 1), (1, 3), (4, 1), (2, 3), (5, 2)])
def test_every_row_goes_to_one_replica(rows, workers, devices):
    replicas = workers * devices
    parts = [
        batches.row_range(rows, replica, replicas=replicas, devices=devices)
        for replica in range(replicas)
    ]
    # As `predict` joins them: the first device of every worker, then the second devices.
    joined = [
        parts[worker * devices + device] for device in range(devices) for worker in range(workers)
    ]
    assert np.concatenate([np.arange(*part) for part in joined]).tolist() == list(range(rows))
    assert {stop - start for start, stop in parts} <= {rows // replicas, -(-rows // replicas)}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([np.ones([3, 2]), np.ones([2])], "Received: arrays of 3, 2 rows"),
        ([np.ones([0, 2])], "Received: arrays of 0 rows"),
        ([None], "at least one"),
        ([np.ones([3]), 4.0], "one row per example. Received: 4.0"),
    ],
    ids=["lengths", "no rows", "no arrays", "number"],
)
def test_a_batch_without_rows_of_one_number_is_refused(strategy, batch, message):
    with pytest.raises(ValueError, match=message):
        strategy._split_batch(batch)


ELEMENTS = {"x": np.arange(6.0).reshape(3, 2), "names": np.array(["a", "b", "c"])}


@pytest.mark.parametrize(
    "value",
    [ELEMENTS, (ELEMENTS, [1, 2, 3]), [1, 2, 3], tf.ragged.constant([[1, 2], [3], []])],
    ids=["dict", "tuple", "list", "ragged"],
)
def test_copied_batches_are_equal_and_of_the_same_structure(value):
    dataset = tf.data.Dataset.from_tensor_slices(value).batch(2)
    copied = batches.in_their_own_memory(dataset)
    assert copied.element_spec == dataset.element_spec
    for pair in zip(copied, dataset, strict=True):
        flat = (tf.nest.flatten(batch, expand_composites=True) for batch in pair)
        for own, expected in zip(*flat, strict=True):
            np.testing.assert_array_equal(own, expected)
