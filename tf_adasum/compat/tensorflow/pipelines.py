"""Describes the pipeline of a `tf.data.Dataset`, and seeds shuffles without a seed."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from tf_adasum.compat.tensorflow.private_names import SEEDS, data_random_seed, hooks
from tf_adasum.compat.thread_flag import ThreadFlag

# The operations that read files.
READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
# The parts that count rows or pair rows. If files are sharded, each worker would count only the
# rows of its own files.
COUNTERS = ("Take", "Skip", "Shard", "Zip", "TakeWhile", "Scan")
# The sources that consist of tensors.
SLICES = ("Tensor", "TensorSlice")
# The operations that call Python.
GENERATORS = ("GeneratorDataset", "PyFunc", "EagerPyFunc")

# ---- the parts of a dataset --------------------------------------------------------------------


class Pipeline(NamedTuple):
    """Properties of the parts of a dataset: its sources, and its transformations such as `shuffle`.

    Attributes:
        tensors: the tensors that the dataset begins with: arrays, and the names of files.
        files: the number of files, for each source of files that has a known number of files.
        seeds: the two seeds of each part that draws random numbers.
        selections: the arguments of each `shard`, `skip` and `take`.
        counts_rows: whether rows of files are counted or paired, as by `take`, `skip` and `zip`.
        begins_with_tensors: whether the dataset begins only with tensors, not with a generator.
        cache_files: the names of the files of each `cache(filename)`.
    """

    tensors: list[tf.Tensor]
    files: list[int]
    seeds: list[tuple[int, int]]
    selections: list[tuple[int, ...]]
    counts_rows: bool
    begins_with_tensors: bool
    cache_files: list[str]


def pipeline_of(dataset: tf.data.Dataset) -> Pipeline:
    """Return the `Pipeline` of a dataset, without the datasets that its functions create."""
    parts = list(_parts(dataset))
    sources = [part for part in parts if not _inputs(part)]
    return Pipeline(
        tensors=[tensor for part in sources for tensor in _tensors(part)],
        files=[count for part in parts if (count := _number_of_files(part)) is not None],
        seeds=[(_int(part._seed), _int(part._seed2)) for part in parts if hasattr(part, "_seed2")],
        selections=[numbers for part in parts if (numbers := _selection(part))],
        counts_rows=any(
            _kind(part) in COUNTERS
            and any(_number_of_files(each) is not None for each in _parts(part))
            for part in parts
        ),
        begins_with_tensors=all(_kind(part) in SLICES for part in sources)
        and not any(_makes(GENERATORS, part) for part in parts),
        cache_files=[name for part in parts if (name := _cache_file(part))],
    )


def _parts(dataset: Any) -> Iterator[Any]:
    ahead = [dataset]
    while ahead:
        part = ahead.pop()
        yield part
        ahead.extend(reversed(_inputs(part)))


def _inputs(part: Any) -> list[Any]:
    names = getattr(part, "_filenames", None)  # some readers do not return them as inputs
    return list(part._inputs()) or [each for each in [names] if isinstance(each, tf.data.Dataset)]


def _kind(part: Any) -> str:
    """Return the name of the class of a dataset without "Dataset", such as "Shuffle"."""
    return type(part).__name__.lstrip("_").removesuffix("Dataset")


def _selection(part: Any) -> tuple[int, ...]:
    if _kind(part) == "Shard":
        return _int(part._num_shards), _int(part._index)
    return (_int(part._count),) if _kind(part) in ("Skip", "Take") else ()


def _cache_file(part: Any) -> str:
    is_cache = _kind(part) == "Cache"
    return str(tf.get_static_value(part._filename) or b"", "utf-8") if is_cache else ""


def _int(value: Any) -> int:
    known = tf.get_static_value(value)
    return 0 if known is None else int(known)


def _tensors(part: Any) -> list[tf.Tensor]:
    if _kind(part) not in SLICES:
        return []
    return [each for each in part._tensors if each.dtype not in (tf.variant, tf.resource)]


def _number_of_files(part: Any) -> int | None:
    """Return the number of files if TensorFlow can shard this dataset by file, otherwise None."""
    if hasattr(part, "_filenames"):
        names = part._filenames
    elif _makes(READERS, part):
        (names,) = part._inputs()
    else:
        return None
    if not isinstance(names, tf.data.Dataset):
        return None
    sources = [each for each in _parts(names) if _kind(each) == "TensorSlice"]
    return int(sources[0]._tensors[0].shape[0]) if len(sources) == 1 else None


def _makes(operations: tuple[str, ...], part: Any) -> bool:
    """Return whether a part is a `flat_map` or `interleave` that uses one of some operations."""
    function = getattr(part, "_map_func", None)
    if function is None or not isinstance(function.output_structure, tf.data.DatasetSpec):
        return False
    definition = function.function.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return any(node.op.startswith(operations) for node in nodes)


# ---- the order of rows --------------------------------------------------------------------------

# The operations whose results are other numbers in each process.
RANDOM = ("Random", "StatefulRandom", "StatefulUniform", "StatefulStandard", "Multinomial")


def begin_pass(dataset: tf.data.Dataset, parts: Iterable[tf.data.Dataset], is_first: bool) -> None:
    """Begin a pass through a dataset, so that the next pass has the next order.

    An iterator draws the seeds of the last `shuffle` when it is created, of an earlier `shuffle`
    when it reads the first element, and of repeated or concatenated datasets while it reads all
    elements. The first pass decides the order that a `cache` keeps.

    Args:
        dataset: the user's dataset.
        parts: what a strategy has made of it.
        is_first: whether no pass was begun before.
    """
    read_all = _is_shuffled_before(dataset, "Repeat", "Concatenate") or (
        is_first and _is_shuffled_before(dataset, "Cache")
    )
    seeded = [part for part in _parts(dataset) if hasattr(part, "_seed2")]
    for iterator in map(iter, parts):
        if read_all or len(seeded) > 1:
            collections.deque(iterator if read_all else itertools.islice(iterator, 1), maxlen=0)


def _is_shuffled_before(dataset, *kinds):
    parts = [part for part in _parts(dataset) if _kind(part) in kinds]
    return any(hasattr(each, "_seed2") for part in parts for each in _parts(part))


def why_not_repeatable(dataset: tf.data.Dataset) -> str:
    """Return why a new process cannot read the rows in the same order, or "" if it can."""
    seed = "pass a seed, or call keras.utils.set_random_seed before the dataset is created."
    if dataset.options().deterministic is False:
        return "the dataset has the option deterministic=False."
    for part in _parts(dataset):
        pair = (_int(part._seed), _int(part._seed2)) if hasattr(part, "_seed2") else (1, 1)
        if pair == (0, 0) or pair in _Seeds.drawn:
            return f"the dataset is shuffled without a seed: {seed}"
        if "DataService" in _kind(part):
            return "a tf.data service decides the order."
        function = getattr(getattr(part, "_map_func", None), "function", None)
        for node in function.graph.get_operations() if function is not None else ():
            if node.type.startswith(RANDOM):
                return f"a function of the dataset draws random numbers with tf.{node.type}."
            if node.type.startswith("ShuffleDataset") and not any(map(_int, node.inputs[2:4])):
                return f"a function of the dataset shuffles without a seed: {seed}"
    return ""


# ---- seeds -------------------------------------------------------------------------------------


class _Seeds:
    """Holds the function that draws the seeds of datasets. With None, TensorFlow draws them."""

    draw: Callable[[], int] | None = None
    drawn: ClassVar[set[tuple[int, int]]] = set()  # the seeds that datasets got from it


def seed_datasets_by(draw: Callable[[], int] | None) -> None:
    """Set the function that draws the seeds of datasets that shuffle without a seed.

    Args:
        draw: function that returns a new int in each call. With None, TensorFlow draws the seeds.
    """
    _Seeds.draw = draw


# A context manager in which TensorFlow draws the seeds of datasets that this thread creates.
_unseeded = ThreadFlag()
unseeded_datasets = _unseeded.within


@hooks.replaces(data_random_seed, "get_seed", feature=SEEDS)
def get_seed(original, seed):
    """Give datasets that shuffle without a seed the same seed on all workers.

    Each worker creates the whole dataset and takes its part of each batch. If the orders differ,
    some rows are used twice and others never. The seed is an input of the dataset, so it can only
    be set when the dataset is created. If the user has set a seed, also with
    `tf.random.set_seed`, this seed is kept.
    """
    seeds = original(seed)
    is_unseeded = seed is None and _int(seeds[0]) == _int(seeds[1]) == 0
    if _Seeds.draw is None or _unseeded.value or not is_unseeded:
        return seeds
    seeds = original(_Seeds.draw())
    _Seeds.drawn.add((_int(seeds[0]), _int(seeds[1])))
    return seeds
