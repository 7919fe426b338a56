"""Which rows of a global batch each replica gets."""

import numpy as np
import pytest
import tensorflow as tf

import tf_adasum
from tf_adasum.replicas import batches


def ranges(rows, workers, devices):
    replicas = workers * devices
    return [
        batches.row_range(rows, replica, replicas=replicas, devices=devices)
        for replica in range(replicas)
    ]


@pytest.mark.parametrize("rows", [1, 3, 17, 18011])
@pytest.mark.parametrize(("workers", "devices"), [(1, 1), (1, 3), (4, 1), (2, 3), (5, 2)])
def test_every_row_goes_to_one_replica(rows, workers, devices):
    parts = ranges(rows, workers, devices)
    # As `predict` joins them: every worker's first device, then every second one.
    joined = [
        parts[worker * devices + device] for device in range(devices) for worker in range(workers)
    ]
    assert np.concatenate([np.arange(*part) for part in joined]).tolist() == list(range(rows))
    assert {stop - start for start, stop in parts} <= {rows // len(parts), -(-rows // len(parts))}


def test_the_order_of_two_devices_on_two_workers():
    assert ranges(7, workers=2, devices=2) == [(0, 2), (4, 6), (2, 4), (6, 7)]


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
def test_what_has_no_rows_of_one_number_is_refused(batch, message):
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    with pytest.raises(ValueError, match=message):
        strategy.split_batch(batch)


def test_one_replica_gets_all_rows_in_their_structure():
    strategy = tf_adasum.AdasumMirroredStrategy(devices=["CPU:0"])
    split = strategy.split_batch(
        {"x": np.arange(6.0).reshape(3, 2), "y": np.array([1, 2, 3]), "w": None}
    )
    assert split.keys() == {"x", "y", "w"} and split["w"] is None
    (x,), (y,) = (strategy.experimental_local_results(split[name]) for name in ("x", "y"))
    assert x.numpy().tolist() == [[0, 1], [2, 3], [4, 5]] and y.numpy().tolist() == [1, 2, 3]


def test_copied_batches_are_equal_and_of_the_same_structure():
    elements = {"x": np.arange(6.0).reshape(3, 2), "names": np.array(["a", "b", "c"])}
    for value in (
        elements,
        (elements, [1, 2, 3]),
        [1, 2, 3],
        tf.ragged.constant([[1, 2], [3], []]),
    ):
        dataset = tf.data.Dataset.from_tensor_slices(value).batch(2)
        copied = batches.in_their_own_memory(dataset)
        assert copied.element_spec == dataset.element_spec
        for own, expected in zip(copied, dataset, strict=True):
            tf.nest.map_structure(
                lambda a, b: np.testing.assert_array_equal(a.numpy(), b.numpy()),
                *(tf.nest.flatten(batch, expand_composites=True) for batch in (own, expected)),
            )
