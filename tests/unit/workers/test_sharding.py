"""Which policy a dataset gets, and the warnings if the workers' datasets differ."""

import numpy as np
import pytest
import tensorflow as tf
from support.fake_workers import run_on_workers

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.workers import sharding
from tf_adasum.workers.sharding import Policy, Sharding
from tf_adasum.workers.workers import Workers

X = np.arange(48, dtype="float32").reshape(24, 2)
Y = np.arange(24) % 5
NAMES = np.array([f"image-{index}.png" for index in range(24)])


pytestmark = pytest.mark.usefixtures("unseeded")


@pytest.fixture
def warned(monkeypatch):
    """The texts of the warnings of all workers."""
    texts = []
    monkeypatch.setattr(sharding.warnings, "warn", lambda text, **_: texts.append(text))
    return texts


@pytest.fixture
def folder(tmp_path):
    for index in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"{index}.tfrecord")) as writer:
            writer.write(b"1")
    return tmp_path


@pytest.fixture
def checked(warned):
    """A function: what each worker gets for ``make(rank)``, and the warning."""

    def check(make, count=2, in_order=False):
        def part(workers):
            own = Sharding(workers)
            own.is_in_order = in_order
            dataset = own.with_valid_policy(make(workers.rank))
            return dataset.options().experimental_distribute.auto_shard_policy

        outcomes = run_on_workers(count, part)
        assert len({str(each) for each in outcomes}) == 1, "the same on all workers"
        assert len(warned) in (0, count) and len(set(warned)) <= 1
        return outcomes[0], "".join(warned[:1])

    return check


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def records(folder, count=3, step=1):
    names = [str(folder / f"{index}.tfrecord") for index in range(count)]
    return tf.data.TFRecordDataset(tf.constant(names[::step], tf.string)).batch(2)


def listed(folder, rank):
    files = tf.data.Dataset.list_files(str(folder / "*"), seed=rank + 1)
    return files.interleave(tf.data.TFRecordDataset)


def arrays(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


def of_known_length(rows):
    return rows.apply(tf.data.experimental.assert_cardinality(6))


# A function of the folder, the number of workers, whether the order matters, and the policy.
POLICIES = {
    "arrays AUTO": (lambda folder: arrays(), 2, False, Policy.DATA),
    "arrays DATA": (lambda folder: with_policy(arrays(), Policy.DATA), 2, False, Policy.DATA),
    "arrays FILE": (lambda folder: with_policy(arrays(), Policy.FILE), 2, False, Policy.FILE),
    "FILE": (lambda folder: with_policy(records(folder, 2), Policy.FILE), 2, False, Policy.FILE),
    "too few files": (lambda folder: records(folder, 1), 2, False, Policy.DATA),
    "enough files": (lambda folder: records(folder, 2), 2, False, Policy.AUTO),
    "batches may not fit": (lambda folder: of_known_length(records(folder)), 2, False, Policy.DATA),
    "batches fit": (lambda folder: of_known_length(records(folder)), 3, False, Policy.AUTO),
    "in order AUTO": (records, 2, True, Policy.DATA),
    "in order FILE": (
        lambda folder: with_policy(records(folder), Policy.FILE),
        2,
        True,
        Policy.DATA,
    ),
    # Rows of files are counted or paired.
    "take": (lambda folder: records(folder, 4).take(3), 2, False, Policy.DATA),
    "skip": (lambda folder: records(folder, 4).batch(2).skip(1).prefetch(1), 2, False, Policy.DATA),
    "shard": (lambda folder: records(folder, 4).shard(2, 0), 2, False, Policy.DATA),
    "zip": (lambda folder: tf.data.Dataset.zip((records(folder, 4),) * 2), 2, False, Policy.DATA),
}


@pytest.mark.parametrize("name", POLICIES)
def test_policy(checked, folder, name):
    make, count, in_order, policy = POLICIES[name]
    assert checked(lambda rank: make(folder), count, in_order) == (policy, "")


@pytest.mark.parametrize("method", ["with_valid_policy", "check_cache"])
def test_a_cache_file_of_several_workers_is_refused(method, tmp_path):
    def cached(name):
        return lambda workers: getattr(Sharding(workers), method)(
            arrays().cache(name and f"{tmp_path}/{name}{workers.rank % 2}").batch(2)
        )

    for error in run_on_workers(3, cached("a")):
        assert "Give each worker its own file" in str(error)
    for name, count in (("a", 2), ("", 3)):
        results = run_on_workers(count, cached(name))
        assert not any(isinstance(each, Exception) for each in results)


def test_any_order_is_no_order_to_shard_by():
    options = tf.data.Options()
    options.deterministic = False
    outcome, _ = run_on_workers(
        2, lambda own: Sharding(own).with_valid_policy(arrays().with_options(options))
    )
    assert outcome.options().deterministic is True


# A function of the rank, and the warning; "" for none.
DIFFERENCES = {
    "lengths": (lambda rank: arrays(X[rank:], Y[rank:]), sharding.DATA_DIFFERS),
    "orders": (lambda rank: arrays(X[:: 1 - 2 * rank], Y[:: 1 - 2 * rank]), sharding.DATA_DIFFERS),
    "parts": (lambda rank: arrays(X + rank, np.zeros(24)), sharding.DATA_DIFFERS),
    "one-hot": (lambda rank: arrays(*[np.roll(np.eye(24), rank, 0)] * 2), sharding.DATA_DIFFERS),
    "names": (lambda rank: arrays(NAMES[:: 1 - 2 * rank], Y), sharding.DATA_DIFFERS),
    "seeds": (lambda rank: arrays().shuffle(9, seed=rank + 1), sharding.ORDERS_DIFFER),
    "shards": (lambda rank: arrays().shard(2, rank), sharding.SHARDED_TWICE),
    "skipped": (lambda rank: arrays().skip(12 * rank).take(12), sharding.SHARDED_TWICE),
    "copies": (lambda rank: with_policy(arrays(), Policy.OFF), sharding.SAME_ROWS),
    "copies of some": (lambda rank: with_policy(arrays().take(12), Policy.OFF), sharding.SAME_ROWS),
    "same": (lambda rank: arrays(), ""),
    "same seeds": (lambda rank: arrays().shuffle(9, seed=1).batch(4), ""),
    "rounded": (lambda rank: arrays(X * (1 + 1e-7 * rank)), ""),
    "noisy": (lambda rank: arrays(X + np.random.default_rng(rank).normal(size=X.shape)), ""),
    "own shard": (lambda rank: with_policy(arrays().shard(2, rank), Policy.OFF), ""),
    "own part": (lambda rank: with_policy(arrays().skip(rank).take(9), Policy.OFF), ""),
    "own rows": (lambda rank: with_policy(arrays(X[12 * rank :][:12], Y[:12]), Policy.OFF), ""),
    "own order": (lambda rank: with_policy(arrays().shuffle(9, seed=rank + 1), Policy.OFF), ""),
    "unknown": (
        lambda rank: tf.data.Dataset.from_generator(
            lambda: iter([rank]), output_signature=tf.TensorSpec([], "int32")
        ),
        "",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_rows_that_get_lost_and_no_false_alarm(checked, name):
    make, text = DIFFERENCES[name]
    assert checked(make)[1] == text


def test_by_file_seeds_may_differ(checked, folder):
    """TensorFlow shards the files before they are shuffled."""
    assert checked(lambda rank: listed(folder, rank)) == (Policy.AUTO, "")
    by_data = checked(lambda rank: with_policy(listed(folder, rank), Policy.DATA))
    assert by_data[1] == sharding.ORDERS_DIFFER


@pytest.mark.parametrize(
    ("fetch", "differ"),
    [
        (lambda rank, noise: (X, {"a": Y, "b": None}), False),
        (lambda rank, noise: (X[12 * rank :][:12], Y[6 * rank :][:12]), True),
        (lambda rank, noise: (noise(), Y), False),
        (lambda rank, noise: (noise(), noise()), False),
        (lambda rank, noise: (noise(), np.roll(Y, rank)), True),
    ],
    ids=["same", "other rows", "augmented", "all augmented", "augmented, other rows"],
)
def test_batches_that_python_makes(warned, fetch, differ):
    generator = np.random.default_rng(0)

    def noise():
        return X + generator.normal(size=X.shape)

    def check(own):
        Sharding(own).check_batches(lambda: fetch(own.rank, noise))

    assert run_on_workers(2, check) == [None, None]
    assert warned == [sharding.DATA_DIFFERS] * 2 * differ


def test_seeds_are_the_same_on_all_workers(monkeypatch):
    draws = []
    monkeypatch.setattr(tensorflow_compat, "seed_datasets_by", draws.append)
    for rank, count, seed in [(0, 2, 7), (1, 2, 7), (0, 2, 8), (0, 1, 7), (0, 2, None)]:
        Sharding(Workers(rank, count, None, None)).share_seeds(seed)
    assert len(draws) == 3, "one process draws as TensorFlow does"
    first, second, of_other_seed = ([draw() for _ in range(3)] for draw in draws)
    assert first == second and len({*first, *of_other_seed}) == 6
    assert all(0 <= seed < 2**31 for seed in first) and max(first) >= 2**30


def test_a_second_strategy_continues_with_the_next_seeds(monkeypatch):
    draws, workers = [], Workers(0, 2, None, None)
    monkeypatch.setattr(tensorflow_compat, "seed_datasets_by", draws.append)
    earlier = Sharding(workers)
    earlier.share_seeds(7)
    seeds = [draws[0]()]
    Sharding(workers).share_seeds(7, [earlier])
    assert len({*seeds, draws[1](), draws[0](), draws[1]()}) == 4


def test_after_a_dataset_all_workers_draw_the_same_seeds():
    def part(workers):
        sharding = Sharding(workers)
        sharding._seeds.drawn = workers.rank  # worker 1 has drawn one more
        sharding.with_valid_policy(tf.data.Dataset.range(8).batch(2))
        return sharding._seeds.drawn

    assert run_on_workers(2, part) == [1, 1]


def test_files_in_other_orders(checked, folder):
    text = checked(lambda rank: records(folder, step=1 - 2 * rank))[1]
    assert text == sharding.DATA_DIFFERS
