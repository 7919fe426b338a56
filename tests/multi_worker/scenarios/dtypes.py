"""What the worker processes do for `test_dtypes.py`: variables and values of every dtype."""

import keras
import numpy as np
import tensorflow as tf
from support.keras_versions import copies_of
from tensorflow.dtypes import experimental

from scenarios.basics import scope, use_rule, weights_of

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
            counted = tf.Variable(
                tf.cast([1.0, 2.0], tf.float32 if dtype == tf.bool else dtype),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
        total = counted.read_value().numpy()
        results[f"{name}.counted"] = total.real if dtype.is_complex else total.astype("float64")
    return results


class Seeded(keras.layers.Dense):
    """A layer with a seed, as of a stateless random operation."""

    def build(self, shape):
        super().build(shape)
        self.seed = self.add_weight(
            shape=[2], dtype="uint32", initializer="ones", trainable=False, name="seed"
        )


def train(strategy, dtype):
    """One step of a linear model; replica r's rows have nothing but feature r. Then a deeper one.

    All variables are of one dtype, but for a seed.
    """
    use_rule(strategy, "adasum")
    replicas = strategy.num_replicas_in_sync
    x = np.repeat(np.eye(replicas, dtype="float32"), 4, axis=0)
    y = np.arange(1, 4 * replicas + 1, dtype="float32")[:, None]
    batch = {"batch_size": 4 * replicas, "shuffle": False, "verbose": 0}
    with scope(strategy):
        linear = keras.Sequential(
            [
                keras.layers.Input([replicas], dtype=dtype),
                Seeded(1, use_bias=False, kernel_initializer="zeros", dtype=dtype),
            ]
        )
        linear.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
    linear.fit(x, y, **batch)
    with scope(strategy):
        deeper = keras.Sequential(
            [
                keras.layers.Input([replicas], dtype=dtype),
                keras.layers.Dense(3, dtype=dtype),
                keras.layers.BatchNormalization(dtype=dtype),
                keras.layers.Dense(1, dtype=dtype),
            ]
        )
        deeper.compile(optimizer="adam", loss="mse", metrics=["mae"])
    loss = deeper.fit(x, y, epochs=2, **batch).history["loss"]
    strategy.check_replicas()
    deeper_weights = {f"deeper.{k}": v.astype("float32") for k, v in weights_of(deeper).items()}
    kernel, seed = linear.get_weights()
    return {"kernel": kernel.astype("float32"), "seed": seed, "loss": loss, **deeper_weights}
