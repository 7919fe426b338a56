"""What a dataset is made of, and the seeds of those that have none."""

import numpy as np
import pytest
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat

X = np.arange(6.0)[:, None]


pytestmark = pytest.mark.usefixtures("unseeded")


def listed(names):
    return tf.data.Dataset.list_files(names).interleave(tf.data.TextLineDataset)


SOURCES = {
    "one file": lambda names: tf.data.TextLineDataset(names[0]),
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
    "listed": listed,
    "zipped": lambda names: tf.data.Dataset.zip((listed(names), listed(names[:1]))),
    "slices": lambda names: tf.data.Dataset.from_tensor_slices((X, X)).batch(2),
    "tensors": lambda names: tf.data.Dataset.from_tensors(X).repeat(),
    "range": lambda names: tf.data.Dataset.range(3),
    "generator": lambda names: tf.data.Dataset.from_generator(
        lambda: iter(X), output_signature=tf.TensorSpec([1])
    ),
}
WITHOUT_TENSORS = ("range", "generator")
# How many files each source of files has; else three.
FILES = {
    "one file": [1],
    "zipped": [3, 1],
    "slices": [],
    "tensors": [],
    "range": [],
    "generator": [],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_it_begins_with(kind, tmp_path):
    paths = [tmp_path / f"{index}.txt" for index in range(3)]
    for path in paths:
        path.write_text("1\n2\n")
    pipeline = tensorflow_compat.pipeline_of(SOURCES[kind](list(map(str, paths))))
    assert pipeline.files == FILES.get(kind, [3])
    assert pipeline.begins_with_tensors == (kind not in WITHOUT_TENSORS)


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


def shuffled(seed=None):
    return tf.data.Dataset.range(4).shuffle(4, seed=seed)


def without_order():
    options = tf.data.Options()
    options.deterministic = False
    return shuffled(1).with_options(options)


REASONS = {
    "seeds": (lambda: shuffled(1).repeat().batch(2), ""),
    "parts with seeds": (lambda: shuffled(1).interleave(lambda _: shuffled(2)), ""),
    "stateless": (lambda: shuffled(1).map(lambda x: tf.random.stateless_uniform([], [x, 1])), ""),
    "no seed": (shuffled, "shuffled without a seed"),
    "parts without": (lambda: shuffled(1).interleave(lambda _: shuffled()), "shuffles without"),
    "random": (lambda: shuffled(1).map(lambda _: tf.random.uniform([])), "random numbers with"),
    "option": (without_order, "deterministic=False"),
}


@pytest.mark.parametrize("case", REASONS)
def test_orders_that_another_process_cannot_repeat(case):
    make, reason = REASONS[case]
    found = tensorflow_compat.why_not_repeatable(make())
    assert reason in found and bool(reason) == bool(found)


def test_a_seed_that_workers_agreed_on_is_another_in_the_next_process():
    seeds = iter(range(5, 9))
    tensorflow_compat.seed_datasets_by(lambda: next(seeds))
    assert "without a seed" in tensorflow_compat.why_not_repeatable(shuffled())
    tf.random.set_seed(1)
    assert tensorflow_compat.why_not_repeatable(shuffled()) == ""


PASSES = {
    "one shuffle": lambda: shuffled(1),
    "two": lambda: shuffled(1).map(lambda x: x + 1).shuffle(4, seed=2).batch(2),
    "three": lambda: shuffled(1).shuffle(2, seed=2).prefetch(1).shuffle(2, seed=3),
    "repeated": lambda: shuffled(1).repeat(3),
    "repeated and shuffled": lambda: shuffled(1).repeat(2).shuffle(3, seed=2),
    "concatenated": lambda: shuffled(1).concatenate(shuffled(2)),
    "cached": lambda: shuffled(1).cache().shuffle(4, seed=2),
    "zipped": lambda: tf.data.Dataset.zip((shuffled(1), shuffled(2))),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([shuffled(1), shuffled(2)], seed=3),
}


@pytest.mark.parametrize("kind", PASSES)
def test_after_passes_that_only_begin_the_next_pass_has_its_order(kind):
    dataset = PASSES[kind]()
    expected = [[np.array(each).tolist() for each in dataset] for _ in range(5)]
    dataset = PASSES[kind]()
    for number in range(3):
        tensorflow_compat.begin_pass(dataset, [dataset], is_first=number == 0)
    for later in expected[3:]:
        assert [np.array(each).tolist() for each in dataset] == later
