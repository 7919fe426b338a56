"""Sharding: which rows of a dataset each worker gets, and whether every row is seen once.

Every worker makes the same dataset. Sharded by FILE each reads some of the files; by DATA each
reads all and takes its part of every batch; with OFF each takes all. Where workers make different
datasets rows are lost: what they begin with is compared, as a few numbers, and differences told.

Shape legend: W workers, k numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adasum.errors import see
from tf_adasum.seams import tensorflow as tensorflow_seam
from tf_adasum.workers.ends import Ends
from tf_adasum.workers.workers import Workers

Policy = tf.data.experimental.AutoShardPolicy

# So much is compared of the data: of the first arrays some rows, of each the mean of some numbers.
ARRAYS, ROWS, NUMBERS = 4, 16, 4096

# Means that differ by less are the same, of the spread of the rows' means and of their size: other
# machines round differently.
TOLERANCE, ROUNDING = 1e-3, 1e-6

SHARDED_TWICE = (
    "Each worker's dataset is a `shard` of its own, of which it gets a part only: the other rows "
    "are not seen. Leave `shard` out, or put the lines that make the dataset into a function: "
    "strategy.distribute_datasets_from_function(lambda context: dataset), with "
    "context.num_input_pipelines, context.input_pipeline_id and, for `batch`, "
    "context.get_per_replica_batch_size. " + see("TFA-407")
)
ORDERS_DIFFER = (
    "The workers shuffle this dataset in different orders: of each batch every worker takes its "
    "part, so that some rows are seen twice and some never. Call keras.utils.set_random_seed with "
    "the same seed on all workers before the dataset is made, and let no worker draw random "
    "numbers or shuffle on its own before that; or give all the same one: "
    "dataset.shuffle(n, seed=1), tf.data.Dataset.list_files(pattern, seed=1). " + see("TFA-402")
)
DATA_DIFFERS = (
    "The workers' data differ, and each worker takes its part of its own: rows are lost, or seen "
    "twice. Give all workers the same data in the same order (sort lists of files, give random "
    "splits and permutations a seed). Where each worker has rows of its own, pass "
    "strategy.distribute_datasets_from_function(lambda context: "
    "dataset.batch(context.get_per_replica_batch_size(batch_size))). " + see("TFA-401")
)
SAME_ROWS = (
    "With AutoShardPolicy.OFF all workers take the same rows in every step: W workers do the work "
    "of one. Leave the policy out, or give each worker its own rows: "
    "dataset.shard(workers, index). " + see("TFA-403")
)


class Sharding:
    """How the datasets of a strategy are sharded.

    Args:
        workers: the strategy's.

    Attributes:
        ends: the `Ends`: whether the workers' parts of a dataset end together.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self.ends = Ends(workers)
        self._is_in_order = False
        self._seed = 0
        self._drawn = 0  # how many seeds

    # ---- seeds ---------------------------------------------------------------------------------

    def share_seeds(self, seed: int | None) -> None:
        """Give datasets that shuffle without a seed the same ones on all workers, from now on.

        Args:
            seed: the same int on all workers; None where there is one worker.
        """
        if self._workers.count > 1 and seed is not None:
            self._seed = seed
            tensorflow_seam.seed_datasets_by(self._draw)

    def _draw(self) -> int:
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._seed} {self._drawn}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1

    # ---- policies ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_order(self) -> Iterator[None]:
        """Shard what is distributed within by DATA, which keeps the order of the rows."""
        self._is_in_order = True
        try:
            yield
        finally:
            self._is_in_order = False

    def checked(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Return a dataset with the policy by which every row is seen once; all workers call it.

        Raises:
            ValueError: on all workers, if there are fewer files than workers under FILE.

        Warns:
            UserWarning: if the workers' datasets differ so that rows are lost.
        """
        if self._workers.count == 1:
            return dataset
        options = dataset.options()
        policy = options.experimental_distribute.auto_shard_policy
        pipeline = tensorflow_seam.pipeline_of(dataset)
        files_of_own = min(pipeline.files, default=-1)
        if policy == Policy.AUTO and pipeline.counts_rows:
            files_of_own = -1  # sharded by DATA
        own = [
            self._drawn,
            policy.value,
            files_of_own,
            pipeline.begins_with_tensors and len(pipeline.tensors) > 0,
            _digest(pipeline.seeds),
            _digest(pipeline.shards),
        ]
        table, data = self._gather(own, pipeline.tensors)
        drawn, policies, files, is_known, seeds, shards = table.T
        self._drawn = int(drawn.max())  # so that those that are made next have the same seeds

        by_file = (files >= 0).all() and policy in (Policy.AUTO, Policy.FILE)
        if (policies == Policy.FILE.value).any() and not self._is_in_order:
            self._check_files(int(files.min()))
        if policy == Policy.OFF:
            copies = is_known.all() and _same(seeds) and _same(shards) and data.are_same
            if not copies:
                return dataset
            if not self._is_in_order:
                warnings.warn(SAME_ROWS, stacklevel=3)
                return dataset
        elif not _same(shards):
            warnings.warn(SHARDED_TWICE, stacklevel=3)
        elif not (by_file or _same(seeds)):
            warnings.warn(ORDERS_DIFFER, stacklevel=3)
        elif data.differ:
            warnings.warn(DATA_DIFFERS, stacklevel=3)

        if by_file and not self._is_in_order and self._has_files_for_all(dataset, pipeline, files):
            return dataset
        if policy == Policy.FILE and not self._is_in_order:
            return dataset  # TensorFlow says what it misses
        return _by_data(dataset, options)

    def note_length(
        self, dataset: tf.data.Dataset, distributed: tf.distribute.DistributedDataset
    ) -> None:
        """Let a dataset under OFF continue until the rows of all workers have ended.

        Its number of batches is that of one process: each worker takes a part of a batch in a step.
        One under DATA must end on all workers together.
        """
        if self._workers.count == 1 or not isinstance(dataset, tf.data.Dataset):
            return
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy == Policy.DATA:
            self.ends.must_be_same(distributed)
        is_off = policy == Policy.OFF
        if is_off and tf.executing_eagerly() and int(dataset.cardinality()) >= 0:
            tensorflow_seam.forget_cardinality(distributed)

    def _check_files(self, files: int) -> None:
        if 0 <= files < self._workers.count:
            raise ValueError(
                "AutoShardPolicy.FILE needs a file for each worker. Use AutoShardPolicy.DATA: "
                "options = tf.data.Options(); options.experimental_distribute.auto_shard_policy = "
                "tf.data.experimental.AutoShardPolicy.DATA; dataset = dataset.with_options(options)"
                f", or write more files. Received: {files} file{'s' * (files != 1)}, "
                f"{self._workers.count} workers {see('TFA-404')}"
            )

    def _has_files_for_all(self, dataset, pipeline, files):
        if files.min() < self._workers.count:
            return False
        # An epoch has as many steps as the dataset says: it has to be so on each worker.
        is_known = int(dataset.cardinality()) >= 0
        return not is_known or all(each % self._workers.count == 0 for each in pipeline.files)

    # ---- batches that Python makes -------------------------------------------------------------

    def check_batches(self, fetch: Callable[[], Any]) -> None:
        """Warn where workers' batches differ, of those made by Python; all workers call it.

        Args:
            fetch: function that returns the first batch, a structure of arrays. It is called again
                where batches differ: what is another one each time, as augmented images are, says
                nothing.

        Warns:
            UserWarning: if the batches differ.
        """
        first = _arrays(fetch())
        _, data = self._gather([], first)
        if not data.differ:
            return
        repeated = Samples(np.stack([_samples(first), _samples(_arrays(fetch()))]))
        table, _ = self._gather(repeated.equal[1].astype(int), [])
        if data.of_these(table.all(axis=0)).differ:
            warnings.warn(DATA_DIFFERS, stacklevel=3)

    def _gather(self, numbers: Sequence[int], tensors: Sequence[Any]) -> tuple[np.ndarray, Samples]:
        """Return all workers' numbers ``[W, k]``, and the samples of their tensors."""
        samples = _samples(tensors)
        own = np.concatenate([np.array(numbers, np.int64), samples.ravel().view(np.int64)])
        table = self._workers.gather(own)
        of_all = np.ascontiguousarray(table[:, len(numbers) :]).view(np.float64)
        return table[:, : len(numbers)], Samples(of_all.reshape(len(table), *samples.shape))


class Samples:
    """Numbers taken of several workers' arrays.

    Args:
        values: ``[W, ARRAYS, 2 + ROWS]`` of `_samples`, NaN where there is nothing.

    Attributes:
        equal: for each worker and array whether they are those of worker 0.
    """

    def __init__(self, values: np.ndarray):
        first, nothing = values[:1], np.isnan(values)
        rows = np.where(nothing, values[:, :, 2:3], values)[:1, :, 2:]
        self._spread = np.ptp(np.nan_to_num(rows), axis=2, keepdims=True)
        size = np.abs(np.nan_to_num(rows)).max(axis=2, keepdims=True)
        allowed = TOLERANCE * self._spread + ROUNDING * size
        close = np.abs(values - first) <= allowed
        close[:, :, :2] = (values == first)[:, :, :2]
        self._are_names = values[0, :, 1] == 1
        self._values = values
        self.equal = (close | (nothing & nothing[:1])).all(axis=2)

    def of_these(self, arrays: np.ndarray) -> Samples:
        """Return the samples of some arrays only.

        Args:
            arrays: boolean ``[ARRAYS]``.
        """
        return Samples(np.where(arrays[:, None], self._values, np.nan))

    @property
    def are_same(self) -> bool:
        """Whether all workers have the same, of all arrays."""
        return bool(self.equal.all())

    @property
    def differ(self) -> bool:
        """Whether workers have different rows.

        Arrays of which one is the same on all workers have the same rows: the others may be noisy,
        but not names. One whose samples are all the same number says nothing.
        """
        equal = self.equal.all(axis=0)
        if equal.all():
            return False
        if (self._are_names & ~equal).any():
            return True
        says_something = self._spread[0, :, 0] > 0
        return not (equal & says_something).any()


def _samples(tensors: Sequence[Any]) -> np.ndarray:
    """Return of each array what is compared: ``[ARRAYS, 2 + ROWS]``.

    The number of rows, 1 if they are names and else 0, and the means of some rows.
    """
    samples = np.full([ARRAYS, 2 + ROWS], np.nan)
    for sample, tensor in zip(samples, tensors, strict=False):
        count = tensor.shape[0] if len(tensor.shape) else 1
        sample[:2] = count, tf.as_dtype(tensor.dtype) == tf.string
        chosen = np.unique(np.linspace(0, count - 1, min(count, ROWS)).astype(int))
        for index, row in enumerate(chosen):
            sample[2 + index] = _mean(np.asarray(tensor[int(row)] if len(tensor.shape) else tensor))
    return samples


def _mean(row: np.ndarray) -> float:
    numbers = row.ravel()[:: max(1, row.size // NUMBERS)]
    if numbers.dtype.kind in "OSU":  # of the names of files their ends: folders may differ
        return float(np.mean([zlib.crc32(os.path.basename(_bytes(text))) for text in numbers]))
    if numbers.dtype.kind == "c":
        numbers = np.abs(numbers)
    return float(np.nan_to_num(np.asarray(numbers, np.float64)).mean()) if numbers.size else 0.0


def _bytes(text: Any) -> bytes:
    return text if isinstance(text, bytes) else str(text).encode()


def _arrays(batch: Any) -> list[np.ndarray]:
    flat = [each for each in tf.nest.flatten(batch) if each is not None]
    arrays = [np.asarray(each) for each in flat if hasattr(each, "__array__") or np.ndim(each)]
    return [each for each in arrays if each.dtype.kind in "biufOSU"]


def _digest(value: object) -> int:
    digest = hashlib.blake2b(str(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _same(column: np.ndarray) -> bool:
    return bool((column == column[0]).all())


def _by_data(dataset: tf.data.Dataset, given: tf.data.Options) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = Policy.DATA
    if given.deterministic is False:
        options.deterministic = True  # each worker takes its part of every batch
    return dataset.with_options(options)
