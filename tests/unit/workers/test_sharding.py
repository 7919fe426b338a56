"""Which policy a dataset gets, and what workers say where their datasets differ."""

import numpy as np
import pytest
import tensorflow as tf
from support.fake_workers import each_of

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.workers import sharding
from tf_adasum.workers.sharding import Policy, Sharding

X = np.arange(48, dtype="float32").reshape(24, 2)
Y = np.arange(24) % 5
NAMES = np.array([f"image-{index}.png" for index in range(24)])


@pytest.fixture(autouse=True)
def unseeded():
    tf.random.set_seed(None)
    yield
    tensorflow_compat.seed_datasets_by(None)


@pytest.fixture
def folder(tmp_path):
    for index in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"{index}.tfrecord")) as writer:
            writer.write(b"1")
    return tmp_path


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def checked(monkeypatch, make, count=2, in_order=False):
    """What each worker gets for ``make(rank)``: the policy, or an error; and the warnings."""
    warned = []
    monkeypatch.setattr(sharding.warnings, "warn", lambda text, **_: warned.append(text))

    def check(workers):
        own = Sharding(workers)
        own._is_in_order = in_order
        dataset = own.checked(make(workers.rank))
        return dataset.options().experimental_distribute.auto_shard_policy

    outcomes = each_of(count, check)
    assert len({str(each) for each in outcomes}) == 1, "the same on all workers"
    assert len(warned) in (0, count) and len(set(warned)) <= 1
    return outcomes[0], "".join(warned[:1])


def records(folder, count=3, step=1):
    names = [str(folder / f"{index}.tfrecord") for index in range(count)]
    return tf.data.TFRecordDataset(names[::step]).batch(2)


def arrays(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y))


class TestPolicy:
    @pytest.mark.parametrize("policy", [Policy.AUTO, Policy.DATA])
    def test_arrays_are_sharded_by_data(self, monkeypatch, policy):
        got = checked(monkeypatch, lambda rank: with_policy(arrays(), policy))
        assert got == (Policy.DATA, "")

    @pytest.mark.parametrize(("count", "policy"), [(1, Policy.DATA), (2, Policy.AUTO)])
    def test_files_are_sharded_by_file_if_there_are_enough(
        self, monkeypatch, folder, count, policy
    ):
        assert checked(monkeypatch, lambda rank: records(folder, count)) == (policy, "")

    def test_by_data_where_a_known_number_of_batches_may_not_fit(self, monkeypatch, folder):
        known = tf.data.experimental.assert_cardinality(6)
        assert checked(monkeypatch, lambda rank: records(folder).apply(known))[0] == Policy.DATA
        even = checked(monkeypatch, lambda rank: records(folder).apply(known), count=3)
        assert even[0] == Policy.AUTO

    @pytest.mark.parametrize(
        "counted",
        [
            lambda rows: rows.take(3),
            lambda rows: rows.batch(2).skip(1).prefetch(1),
            lambda rows: rows.shard(2, 0),
            lambda rows: tf.data.Dataset.zip((rows, rows)),
        ],
        ids=["take", "skip", "shard", "zip"],
    )
    def test_by_data_where_rows_of_files_are_counted_or_paired(self, monkeypatch, folder, counted):
        got = checked(monkeypatch, lambda rank: counted(records(folder, 4)))
        assert got == (Policy.DATA, "")

    def test_too_few_files(self, monkeypatch, folder):
        def make(rank):
            return with_policy(records(folder, 1), Policy.FILE)

        error, _ = checked(monkeypatch, make, count=3)
        assert isinstance(error, ValueError)
        assert "AutoShardPolicy.DATA" in str(error)
        assert str(error).endswith(f"Received: 1 file, 3 workers {see('TFA-404')}")

    @pytest.mark.parametrize("policy", [Policy.AUTO, Policy.FILE])
    def test_by_data_where_the_order_matters(self, monkeypatch, folder, policy):
        def make(rank):
            return with_policy(records(folder), policy)

        assert checked(monkeypatch, make, in_order=True) == (Policy.DATA, "")

    def test_any_order_is_no_order_to_shard_by(self):
        options = tf.data.Options()
        options.deterministic = False
        outcome, _ = each_of(2, lambda own: Sharding(own).checked(arrays().with_options(options)))
        assert outcome.options().deterministic is True

    def test_in_one_process_nothing_is_changed(self):
        dataset = arrays()
        assert each_of(1, lambda own: Sharding(own).checked(dataset))[0] is dataset


class TestWarnings:
    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda rank: arrays(X[rank:], Y[rank:]), sharding.DATA_DIFFERS),
            (lambda rank: arrays(*((X[::-1], Y[::-1]) if rank else (X, Y))), sharding.DATA_DIFFERS),
            (lambda rank: arrays(X + rank, np.zeros(24)), sharding.DATA_DIFFERS),
            (lambda rank: arrays(*[np.roll(np.eye(24), rank, 0)] * 2), sharding.DATA_DIFFERS),
            (lambda rank: arrays(NAMES[:: 1 - 2 * rank], Y), sharding.DATA_DIFFERS),
            (lambda rank: arrays().shuffle(9, seed=rank + 1), sharding.ORDERS_DIFFER),
            (lambda rank: arrays().shard(2, rank), sharding.SHARDED_TWICE),
            (lambda rank: with_policy(arrays(), Policy.OFF), sharding.SAME_ROWS),
        ],
        ids=["lengths", "orders", "parts", "one-hot", "names", "seeds", "shards", "copies"],
    )
    def test_rows_that_get_lost(self, monkeypatch, make, text):
        assert checked(monkeypatch, make)[1] == text

    @pytest.mark.parametrize(
        "make",
        [
            lambda rank: arrays(),
            lambda rank: arrays().shuffle(9, seed=1).batch(4),
            lambda rank: arrays(X * (1 + 1e-7 * rank)),
            lambda rank: arrays(X + np.random.default_rng(rank).normal(size=X.shape)),
            lambda rank: with_policy(arrays().shard(2, rank), Policy.OFF),
            lambda rank: with_policy(arrays(X[12 * rank :][:12], Y[:12]), Policy.OFF),
            lambda rank: with_policy(arrays().shuffle(9, seed=rank + 1), Policy.OFF),
            lambda rank: tf.data.Dataset.from_generator(
                lambda: iter([rank]), output_signature=tf.TensorSpec([], "int32")
            ),
        ],
        ids=["same", "seeded", "rounded", "noisy", "own shard", "own rows", "own order", "unknown"],
    )
    def test_no_false_alarm(self, monkeypatch, make):
        assert checked(monkeypatch, make)[1] == ""

    def test_files_in_other_orders(self, monkeypatch, folder):
        assert (
            checked(monkeypatch, lambda rank: records(folder, step=1 - 2 * rank))[1]
            == sharding.DATA_DIFFERS
        )

    def test_other_folders_of_the_same_files(self, monkeypatch, folder, tmp_path_factory):
        copy = tmp_path_factory.mktemp("copy")
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        assert checked(monkeypatch, lambda rank: records([folder, copy][rank]))[1] == ""

    def test_by_file_seeds_may_differ(self, monkeypatch, folder):
        """TensorFlow shards the files before they are shuffled."""

        def make(rank):
            return tf.data.Dataset.list_files(str(folder / "*"), seed=rank + 1).interleave(
                tf.data.TFRecordDataset
            )

        assert checked(monkeypatch, make) == (Policy.AUTO, "")
        assert (
            checked(monkeypatch, lambda rank: with_policy(make(rank), Policy.DATA))[1]
            == sharding.ORDERS_DIFFER
        )


class TestBatches:
    def warned(self, monkeypatch, fetch):
        texts = []
        monkeypatch.setattr(sharding.warnings, "warn", lambda text, **_: texts.append(text))
        outcomes = each_of(2, lambda own: Sharding(own).check_batches(lambda: fetch(own.rank)))
        assert outcomes == [None, None]
        return texts

    def test_the_same(self, monkeypatch):
        assert not self.warned(monkeypatch, lambda rank: (X, {"a": Y, "b": None}))

    def test_other_rows(self, monkeypatch):
        texts = self.warned(monkeypatch, lambda rank: (X[12 * rank :][:12], Y[6 * rank :][:12]))
        assert texts == [sharding.DATA_DIFFERS] * 2

    def test_inputs_augmented(self, monkeypatch):
        generator = np.random.default_rng(0)

        def fetch(rank):
            return X + generator.normal(size=X.shape), Y

        assert not self.warned(monkeypatch, fetch)

    def test_all_augmented_says_nothing(self, monkeypatch):
        generator = np.random.default_rng(0)

        def fetch(rank):
            return X + generator.normal(size=X.shape), X + generator.normal(size=X.shape)

        assert not self.warned(monkeypatch, fetch)


def test_seeds_are_the_same_on_all_workers():
    def share(workers):
        own = Sharding(workers)
        own.share_seeds(7)
        return [own._draw() for _ in range(3)]

    first, second = each_of(2, share)
    assert first == second and len(set(first)) == 3
    assert all(0 <= seed < 2**31 for seed in first)


def test_a_dataset_that_one_worker_alone_makes_moves_the_seeds_of_all_on():
    def make(workers):
        own = Sharding(workers)
        own.share_seeds(7)
        if workers.rank == 0:
            own._draw()
        own.checked(arrays())
        return own._draw()

    first, second = each_of(2, make)
    assert first == second
