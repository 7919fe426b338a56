"""What a dataset is made of, and the seeds of those that have none."""

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat

X = np.arange(6.0)[:, None]


@pytest.fixture(autouse=True)
def unseeded():
    tensorflow_compat.hooks.install()
    tf.random.set_seed(None)
    yield
    tensorflow_compat.seed_datasets_by(None)
    tf.random.set_seed(None)


@pytest.fixture
def pattern(tmp_path):
    for index in range(3):
        (tmp_path / f"{index}.txt").write_text("1\n2\n")
    return str(tmp_path / "*.txt")


def files_of(dataset):
    return tensorflow_compat.pipeline_of(dataset).files


READERS = {
    "one": lambda names: tf.data.TextLineDataset(names[0]),
    "list": lambda names: tf.data.TextLineDataset(names).batch(2).prefetch(1),
    "in parallel": lambda names: tf.data.TFRecordDataset(names, num_parallel_reads=2),
    "shuffled, interleaved": lambda names: (
        tf.data.Dataset.from_tensor_slices(names)
        .shuffle(3)
        .interleave(lambda name: tf.data.TextLineDataset(name).map(tf.strings.length))
    ),
    "flat_map": lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(
        lambda name: tf.data.FixedLengthRecordDataset(name, 2)
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_files_are_counted(kind, pattern):
    names = sorted(tf.io.gfile.glob(pattern))
    assert files_of(READERS[kind](names)) == [1 if kind == "one" else 3]


def test_listed_files_are_counted(pattern):
    dataset = tf.data.Dataset.list_files(pattern).interleave(tf.data.TextLineDataset)
    assert files_of(dataset) == [3]
    assert files_of(tf.data.Dataset.zip((dataset, tf.data.TextLineDataset([pattern])))) == [3, 1]


@pytest.mark.parametrize(
    ("make", "begins_with_tensors"),
    [
        (lambda: tf.data.Dataset.from_tensor_slices((X, X)).batch(2), True),
        (lambda: tf.data.Dataset.from_tensors(X).repeat(), True),
        (lambda: tf.data.Dataset.range(3), False),
        (
            lambda: tf.data.Dataset.from_generator(
                lambda: iter(X), output_signature=tf.TensorSpec([1])
            ),
            False,
        ),
    ],
    ids=["slices", "tensors", "range", "generator"],
)
def test_what_it_begins_with(make, begins_with_tensors):
    pipeline = tensorflow_compat.pipeline_of(make())
    assert pipeline.files == [] and pipeline.begins_with_tensors == begins_with_tensors


def test_datasets_without_a_seed_get_one():
    rows = tf.data.Dataset.range(50)
    tensorflow_compat.seed_datasets_by(lambda: 7)
    orders = [list(rows.shuffle(50).as_numpy_iterator()) for _ in range(2)]
    assert orders[0] == orders[1] == list(rows.shuffle(50, seed=7).as_numpy_iterator())
    with tensorflow_compat.unseeded_datasets():
        assert tensorflow_compat.pipeline_of(rows.shuffle(50)).seeds == [(0, 0)]
    assert tensorflow_compat.pipeline_of(rows.shuffle(50)).seeds[0][1] == 7


def test_seeds_of_the_user_stay():
    tensorflow_compat.seed_datasets_by(lambda: 7)
    rows = tf.data.Dataset.range(5)
    assert tensorflow_compat.pipeline_of(rows.shuffle(5, seed=3)).seeds[0][1] == 3
    tf.random.set_seed(3)
    seeded = tensorflow_compat.pipeline_of(rows.shuffle(5)).seeds[0]
    tensorflow_compat.seed_datasets_by(None)
    tf.random.set_seed(3)
    assert tensorflow_compat.pipeline_of(rows.shuffle(5)).seeds[0] == seeded
