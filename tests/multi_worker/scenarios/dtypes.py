"""What the worker processes do for `test_dtypes.py`: variables and values of every dtype."""

import numpy as np
import tensorflow as tf
from support.keras_versions import copies_of
from tensorflow.dtypes import experimental

from scenarios.basics import read_as, scope

DTYPES = {
    dtype.name: dtype
    for dtype in (
        *(tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64),
        *(tf.uint64, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64),
        *(tf.complex128, experimental.float8_e5m2, experimental.float8_e4m3fn),
    )
}


def bytes_of(replica, dtype):
    """Return four numbers of a dtype, as bytes that differ between replicas; NaNs among them."""
    random = np.random.default_rng(replica)
    if dtype == tf.bool:
        return random.integers(0, 2, 4).astype(np.uint8)
    if dtype.is_floating and dtype.size == 1:  # no NaN: TensorFlow has no bitcast of float8
        return random.integers(-8, 8, 4).astype(dtype.as_numpy_dtype).view(np.uint8)
    return random.integers(0, 256, 4 * dtype.size).astype(np.uint8)


def of_replica(replica, dtype):
    return bytes_of(replica, dtype).view(dtype.as_numpy_dtype)


def bits(tensor):
    return np.frombuffer(np.ascontiguousarray(tensor.numpy()).tobytes(), np.uint8)


def travel(strategy):
    """Variables whose initial values differ between workers; gathered, and added-up, values."""
    rank = strategy.cluster_resolver.task_id
    results = {}
    for name, dtype in DTYPES.items():
        with scope(strategy):
            variable = tf.Variable(of_replica(rank, dtype), dtype=dtype)
        for local, copy in enumerate(copies_of(strategy, variable)):
            results[f"{name}.variable.{local}"] = bits(copy.read_value())
        strategy.check_replicas([variable])
        values = strategy.experimental_distribute_values_from_function(
            lambda context, dtype=dtype: tf.constant(
                of_replica(context.replica_id_in_sync_group, dtype)
            )
        )
        results[f"{name}.gathered"] = bits(strategy.gather(values, axis=0))
        if dtype.is_integer:
            results[f"{name}.sum"] = bits(strategy.reduce("SUM", values, axis=None))
        with scope(strategy):  # what each replica counts, and is read as the sum
            as_numbers = tf.float32 if dtype == tf.bool else dtype
            counted = read_as("SUM", tf.cast([1.0, 2.0], as_numbers))
        total = counted.read_value().numpy()
        results[f"{name}.counted"] = total.real if dtype.is_complex else total.astype("float64")
    return results
