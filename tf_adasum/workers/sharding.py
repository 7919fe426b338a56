"""Decides which rows of a dataset each worker gets, and checks that every row is used once.

Every worker creates the same dataset. With the policy FILE, each worker reads some of the files.
With DATA, each worker reads all rows and takes its part of every batch. With OFF, each worker takes
all rows. If workers create different datasets, rows are lost. So the workers compare a few numbers
about some rows, and warn if the numbers differ.

Shape legend: k is any number of values.
"""

import contextlib
import dataclasses
import hashlib
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.workers.dataset_end_check import DatasetEndCheck
from tf_adasum.workers.row_samples import RowSamples, arrays_of, samples_of
from tf_adasum.workers.workers import Workers, digest

Policy = tf.data.experimental.AutoShardPolicy

SHARDED_TWICE = (
    "Each worker's dataset is already a part of the data: it uses `shard`, or `skip` or `take` "
    "with different numbers on each worker. The strategy would divide this part again, so some "
    "rows would never be used. Remove `shard`, `skip` and `take`, or pass "
    f"strategy.distribute_datasets_from_function(lambda context: dataset). {see('TFA-407')}"
)
ORDERS_DIFFER = (
    "The workers shuffle this dataset in different orders. Each worker takes its part of every "
    "batch, so some rows are used twice and some never. Call keras.utils.set_random_seed with "
    "the same seed on all workers before the dataset is created, or pass a seed: "
    f"dataset.shuffle(n, seed=1), tf.data.Dataset.list_files(pattern, seed=1). {see('TFA-402')}"
)
DATA_DIFFERS = (
    "The workers' data differ. Each worker takes its part of its own data, so rows are lost or "
    "used twice. Use the same data in the same order on all workers (sort lists of files, pass a "
    "seed to random splits and permutations). If each worker has its own rows, pass "
    "strategy.distribute_datasets_from_function(lambda context: "
    "dataset.batch(context.get_per_replica_batch_size(batch_size))). " + see("TFA-401")
)
SAME_CACHE = (
    "Several workers of this machine write the file of `cache(filename)`. Give each worker its own "
    'file: dataset.cache(f"{filename}-{strategy.rank}-of-{strategy.num_workers}"). '
)
SAME_ROWS = (
    "With AutoShardPolicy.OFF all workers take the same rows in every step, so W workers do the "
    "work of one worker. Remove the policy, or give each worker its own rows: "
    "dataset.shard(workers, index). " + see("TFA-403")
)


@dataclasses.dataclass
class _Seeds:
    """The seeds of the datasets of this process: a function of `seed` and how many were drawn."""

    seed: int = 0
    drawn: int = 0

    def draw(self) -> int:
        self.drawn += 1
        short = hashlib.blake2b(f"{self.seed} {self.drawn}".encode(), digest_size=4).digest()
        return int.from_bytes(short, "big") >> 1


class Sharding:
    """Shards the datasets of a strategy.

    Args:
        workers: the strategy's `Workers`.

    Attributes:
        end_check: the `DatasetEndCheck`: a dataset has to end in the same step on all workers.
        is_in_order: whether datasets keep the order of their rows.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self.end_check = DatasetEndCheck(workers)
        self.is_in_order = False
        self._seeds = _Seeds()

    # ---- seeds ---------------------------------------------------------------------------------

    def share_seeds(self, seed: int | None, earlier: Iterable[Any] = ()) -> None:
        """From now on, give datasets that shuffle without a seed the same seeds on all workers.

        Args:
            seed: the same int on all workers; None if there is one worker.
            earlier: the `Sharding`s of this process's other strategies. This object continues with
                their next seeds.
        """
        if self._workers.count > 1 and seed is not None:
            drawing = [each._seeds for each in earlier if each._workers.count > 1]
            self._seeds = drawing[0] if drawing else _Seeds(seed)
            tensorflow_compat.seed_datasets_by(self._seeds.draw)

    # ---- policies ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Return a context in which datasets are sharded by DATA, which keeps the order of rows."""
        self.is_in_order = True
        try:
            yield
        finally:
            self.is_in_order = False

    def with_valid_policy(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset with a policy that uses every row once; all workers call this.

        Raises:
            ValueError: on all workers, if workers of one machine write the same file of
                `cache(filename)`.

        Warns:
            UserWarning: if the workers' datasets differ so that rows are lost.
        """
        if self._workers.count == 1:
            return dataset
        options = dataset.options()
        policy = options.experimental_distribute.auto_shard_policy
        pipeline = tensorflow_compat.pipeline_of(dataset)
        files_of_own = min(pipeline.files, default=-1)
        if policy == Policy.AUTO and pipeline.counts_rows:
            files_of_own = -1  # sharded by DATA
        own = [
            self._seeds.drawn,
            files_of_own,
            pipeline.begins_with_tensors and len(pipeline.tensors) > 0,
            digest(pipeline.seeds),
            digest(pipeline.selections),
            _digest_of_cache(pipeline.cache_files),
        ]
        table, data = self._gather(own, pipeline.tensors)
        drawn, files, is_known, seeds, selections, caches = table.T
        self._seeds.drawn = int(drawn.max())  # so that the next datasets have the same seeds

        _refuse_same_cache(caches, pipeline.cache_files)
        by_file = (files >= 0).all() and policy in (Policy.AUTO, Policy.FILE)
        if policy == Policy.OFF:
            copies = is_known.all() and _same(seeds) and _same(selections) and data.all_equal
            if not copies:
                return dataset
            if not self.is_in_order:
                warnings.warn(SAME_ROWS, stacklevel=3)
                return dataset
        elif not _same(selections):
            warnings.warn(SHARDED_TWICE, stacklevel=3)
        elif not (by_file or _same(seeds)):
            warnings.warn(ORDERS_DIFFER, stacklevel=3)
        elif data.rows_differ:
            warnings.warn(DATA_DIFFERS, stacklevel=3)

        if by_file and not self.is_in_order and self._has_files_for_all(dataset, pipeline, files):
            return dataset
        if policy == Policy.FILE and not self.is_in_order:
            return dataset  # TensorFlow raises an error
        return _by_data(dataset, options)

    def check_cache(self, dataset: tf.data.Dataset) -> None:
        """Check that each worker caches a dataset of its own; all workers call this.

        Raises:
            ValueError: on all workers, if workers of one machine write the same file of
                `cache(filename)`.
        """
        if self._workers.count > 1:
            names = tensorflow_compat.pipeline_of(dataset).cache_files
            _refuse_same_cache(self._workers.gather([_digest_of_cache(names)])[:, 0], names)

    def note_length(
        self, dataset: tf.data.Dataset, distributed: tf.distribute.DistributedDataset
    ) -> None:
        """Note in which step the dataset ends on each worker; all workers call this.

        If the policy is DATA, the dataset must end in the same step on all workers. If the number
        of batches is known, `with_valid_policy` has compared it, so no step asks for it again.

        If the policy is OFF, the dataset continues until the rows of all workers have ended. Its
        cardinality is the number of steps if one process trains alone. It is wrong for several
        workers, because in a step each worker takes only some rows of one of its batches.
        """
        if self._workers.count == 1 or not isinstance(dataset, tf.data.Dataset):
            return
        policy = dataset.options().experimental_distribute.auto_shard_policy
        is_known = tf.executing_eagerly() and int(dataset.cardinality()) >= 0
        if policy == Policy.DATA:
            self.end_check.require_same_length(distributed)
            if is_known:
                self.skip_end_check(distributed)
        if policy == Policy.OFF and is_known:
            tensorflow_compat.forget_cardinality(distributed)

    def skip_end_check(self, distributed: tf.distribute.DistributedDataset) -> None:
        """Let no step ask whether all workers have a batch. All datasets end in the same step.

        Args:
            distributed: distributed dataset with the policy DATA, and with the same number of
                batches on all workers.
        """
        if self._workers.count > 1:
            tensorflow_compat.skip_end_check(distributed)

    def _has_files_for_all(self, dataset, pipeline, files):
        if files.min() < self._workers.count:
            return False
        # The number of steps in an epoch comes from the dataset, and must match on all workers.
        is_known = int(dataset.cardinality()) >= 0
        return not is_known or all(each % self._workers.count == 0 for each in pipeline.files)

    # ---- batches that Python makes -------------------------------------------------------------

    def check_batches(self, fetch: Callable[[], Any]) -> None:
        """Warn if the workers' first batches from Python differ; all workers call this.

        Args:
            fetch: function that returns the first batch, a structure of arrays. If the workers'
                batches differ, the function is called a second time. Arrays that change between the
                two calls, such as augmented images, are not compared.

        Warns:
            UserWarning: if the batches differ.
        """
        first = arrays_of(fetch())
        _, data = self._gather([], first)
        if not data.rows_differ:
            return
        repeated = RowSamples(np.stack([samples_of(first), samples_of(arrays_of(fetch()))]))
        table, _ = self._gather(repeated.equal[1].astype(int), [])
        if data.of_these(table.all(axis=0)).rows_differ:
            warnings.warn(DATA_DIFFERS, stacklevel=3)

    def _gather(
        self, numbers: Sequence[int], tensors: Sequence[Any]
    ) -> tuple[np.ndarray, RowSamples]:
        """Gather every worker's `numbers`, ``[workers, k]``, and its samples of `tensors`."""
        samples = samples_of(tensors)
        own = np.concatenate([np.array(numbers, np.int64), samples.ravel().view(np.int64)])
        table = self._workers.gather(own)
        of_all = np.ascontiguousarray(table[:, len(numbers) :]).view(np.float64)
        return table[:, : len(numbers)], RowSamples(of_all.reshape(len(table), *samples.shape))


def _digest_of_cache(names: Sequence[str]) -> int:
    return digest([socket.gethostname(), names]) if names else 0


def _refuse_same_cache(digests: np.ndarray, names: Sequence[str]) -> None:
    """Raise a ValueError if two workers' `_digest_of_cache` are the same."""
    if len({*digests[digests != 0]}) < np.count_nonzero(digests):
        raise ValueError(f"{SAME_CACHE}Received: {names}")


def _same(column: np.ndarray) -> bool:
    return bool((column == column[0]).all())


def _by_data(dataset: tf.data.Dataset, given: tf.data.Options) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = Policy.DATA
    if given.deterministic is False:
        options.deterministic = True  # all workers need the same order of rows
    return dataset.with_options(options)
