"""The rank of this worker, and methods with which workers exchange values between steps.

Shape legend: W is the number of workers, k is any number of values.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import one_worker
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.health import call_log
from tf_adasum.health.monitor import HealthMonitor, NullMonitor

# Bytes are sent in pieces of at most this size, because each device holds two copies of a piece.
PIECE_BYTES = 64 * 2**20


class Workers:
    """The workers of a strategy; this process is one of the workers.

    Each method is a collective: all workers have to call the method, outside of `strategy.run`,
    with the same number of values. All workers get the same result. If there is only one worker,
    nothing is sent.

    Args:
        rank: the rank of this worker. The worker that writes files has rank 0.
        count: the number of workers, W.
        gather: function that takes this worker's int64 array ``[k]`` and returns the arrays of all
            workers, ``[W, k]``; None if there is one worker.
        add: function that takes this worker's int64 array ``[k]`` and returns the sum of the arrays
            of all workers; None if there is one worker.
        health: the `HealthMonitor`, which detects failures. Defaults to `None`, for no detection.

    Attributes:
        health: the `HealthMonitor` or `NullMonitor`.

    Example:
        >>> workers = tf_adasum.AdasumMirroredStrategy()._workers
        >>> workers.gather([workers.rank, 7])
        array([[0, 7]])
    """

    def __init__(
        self,
        rank: int,
        count: int,
        gather: Callable[[np.ndarray], np.ndarray] | None,
        add: Callable[[np.ndarray], np.ndarray] | None,
        health: HealthMonitor | NullMonitor | None = None,
    ):
        self.rank, self.count = rank, count
        self.health = health or NullMonitor()
        self._gather, self._add = gather, add

    @classmethod
    def of_strategy(
        cls,
        strategy: tf.distribute.Strategy,
        rank: int,
        count: int,
        options: tensorflow_compat.CommunicationOptions,
        health: HealthMonitor | NullMonitor,
    ) -> "Workers":
        """Create the workers of a strategy, which use TensorFlow's collectives.

        Args:
            strategy: an `AdasumMirroredStrategy`.
            rank: the rank of this worker.
            count: the number of workers, W.
            options: the options of the collectives.
            health: the strategy's failure detector.
        """
        extended = strategy.extended
        collectives = tensorflow_compat.cross_device_ops(extended)

        def gather(own):
            with tf.init_scope():  # also while a step is traced
                return _in_the_same_call(
                    own, lambda numbers: collectives.gather_from_workers(numbers, options)
                )

        def add(own):
            # The first replica of this worker sends the numbers. The other replicas have to take
            # part, and send zeros.
            silent = [np.zeros_like(own)] * (len(extended.worker_devices) - 1)
            per_replica = iter([own, *silent])
            values = strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(next(per_replica))
            )
            return strategy.reduce("SUM", values, axis=None).numpy()

        return cls(rank, count, gather, add, health)

    @classmethod
    def of_model(cls, model: keras.Model) -> "Workers":
        """Return a model's workers; one worker if the model has no strategy of this package."""
        strategy = getattr(model, "distribute_strategy", None)
        if keras_compat.is_ours(strategy):
            return strategy._workers
        return cls(0, 1, gather=None, add=None)

    def gather(self, numbers: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the integers ``[k]`` of all workers, as int64 ``[W, k]``."""
        own = np.array(numbers, np.int64)
        return self._gather(own) if self.count > 1 else own[None]

    def compare_calls(self) -> None:
        """Check that all workers make the same call of a model, with the same settings.

        Every exchange checks it, so that workers in different calls raise an error.
        """
        self.gather([])

    def any(self, flag: bool) -> bool:
        """Return whether a condition holds on any worker."""
        return bool(self.gather([int(flag)]).any())

    def broadcast(self, value: int) -> int:
        """Return the value of worker 0; the values of the other workers are ignored."""
        return int(self.gather([value])[0, 0])

    def broadcast_bytes(self, rank: int, data: bytes) -> bytes:
        """Return the bytes of one worker.

        Args:
            rank: the rank of that worker.
            data: the bytes of this worker. Only the bytes of the worker with that rank are used.
        """
        if self.count == 1:
            return data
        size = int(self.gather([len(data)])[rank, 0])
        # The bytes are summed, and the other workers add zeros. A gather would send W times the
        # bytes.
        own = data if self.rank == rank else bytes(size)
        pieces = (own[start : start + PIECE_BYTES] for start in range(0, size, PIECE_BYTES))
        return b"".join(self._add(_words(piece)).tobytes() for piece in pieces)[:size]

    def check_same(self, what: str, value: object, shown: str | None = None, *, code: str) -> None:
        """Check that all workers have the same value.

        Args:
            what: the first sentences of the error: what all workers need, and what to do.
            value: the value; its `str` is compared.
            shown: the text that the error shows for this worker. Defaults to `value`.
            code: the code of the error in docs/troubleshooting.md.

        Raises:
            ValueError: on all workers; the message shows the value of each worker.
        """
        digests = self.gather([digest(value)])[:, 0]
        if (digests == digests[0]).all():
            return
        texts = texts_of_all(str(value if shown is None else shown), self.gather)
        received = _received(zip(digests, texts, strict=True))
        raise ValueError(f"{what} Received: {received} {see(code)}")


def _in_the_same_call(own: np.ndarray, gather: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Gather numbers, and check that all workers are in the same call, with the same settings.

    Raises:
        RuntimeError: on all workers, if their calls differ; the message names the calls.
        ValueError: on all workers, if settings differ; the message names the first setting.
    """
    calls, settings = keras_compat.current_calls(), keras_compat.current_call_settings()
    if not one_worker.is_alone():  # otherwise, the call is refused before anything is sent
        where = f" in {calls}" * (calls != "none")
        call_log.note(f"exchanges numbers{where} ({_caller()})")
    table = gather(np.concatenate([[digest(f"{calls} {settings.digest}")], own]))
    if (table[:, 0] == table[0, 0]).all():
        return table[:, 1:]
    texts = texts_of_all(calls, gather)
    if len(set(texts)) == 1:
        of_all = texts_of_all(json.dumps(settings.all()), gather)
        raise ValueError(_difference(calls, [json.loads(each) for each in of_all]))
    received = (f"{text} on worker {rank}" for rank, text in enumerate(texts))
    raise RuntimeError(
        "All workers have to call fit, evaluate and predict together, also in callbacks. Do not "
        f"call them in code that runs on one worker only. Received: {', '.join(received)} "
        f"{see('TFA-506')}"
    )


def _difference(call: str, settings: Sequence[Mapping[str, str]]) -> str:
    """Return a message with the first setting that differs, and the value on each worker.

    Args:
        call: the call, such as "fit".
        settings: for each worker, in rank order, a dict from the names of settings to values.
    """
    names = dict.fromkeys(name for own in settings for name in own)
    differing = [name for name in names if len({own.get(name) for own in settings}) > 1]
    first = differing[0]
    received = _received((own.get(first, "not set"),) for own in settings)
    others = ", ".join(differing[1:4]) + (", …" if len(differing) > 4 else "")
    more = f" Other settings that differ: {others}." if others else ""
    return (
        f"The workers call {call} with different settings. {first} is not the same on all workers: "
        f"{received}.{more} Run the same program with the same settings on all workers. "
        f"{see('TFA-511')}"
    )


def _received(values: Iterable[tuple]) -> str:
    """Return who has which value, such as "worker 0: 1; workers 1, 2: 3".

    Args:
        values: for each worker, a tuple that is compared, and whose last part is shown.
    """
    ranks_of: dict[tuple, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_of.setdefault(value, []).append(rank)
    return "; ".join(
        f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {shown}"
        for (*_, shown), ranks in ranks_of.items()
    )


def texts_of_all(own: str, gather: Callable[[np.ndarray], np.ndarray]) -> list[str]:
    """Return the texts of all workers; all of them call this."""
    data = own.encode()
    lengths = gather(np.array([len(data)], np.int64))[:, 0]
    rows = gather(_words(data.ljust(int(lengths.max()))))
    return [row.tobytes()[:length].decode() for row, length in zip(rows, lengths, strict=True)]


def digest(value: object) -> int:
    """Return a digest of the `str` of a value, an int of 64 bits."""
    short = hashlib.blake2b(str(value).encode(), digest_size=8).digest()
    return int.from_bytes(short, "big", signed=True)


def _caller() -> str:
    """Return the name of the function that started an exchange, for the log of calls."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_name


def _words(data: bytes) -> np.ndarray:
    """Return bytes as an array of int64; the last number is padded with zero bytes.

    Int64 is the only integer type that collectives support on CPUs and GPUs and that GPUs keep in
    their own memory.
    """
    return np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), np.int64)
