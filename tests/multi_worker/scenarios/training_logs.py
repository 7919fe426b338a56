"""What the worker processes do for `test_training_logs.py`: steps that return all sorts."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import compiled, dense, random_data, scope


class ReturnsAll(keras.Model):
    """A model whose step returns values of many kinds, which differ between the replicas.

    "loss" is the name of a metric, which the step never updates.
    """

    def train_step(self, data):
        del data
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        number = tf.cast(replica, tf.float32)
        return {
            "scalar": number,
            "loss": number,
            "vector": tf.stack([number, 2 * number, 1.0]),
            "matrix": tf.fill([2, 3], number),
            "nested": {"half": tf.cast(number, tf.float16), "double": tf.cast(number, tf.float64)},
            "bfloat16": tf.cast(number, tf.bfloat16),
            "int32": 10 * replica,
            "int64": tf.cast(10 * replica, tf.int64),
            "bool": tf.equal(replica, 0),
            "python_float": 0.25,
            "python_int": 3,
            "numpy": np.float32([1.5, 2.5]),
            "variable": self.layers[-1].bias,
        }


def return_all_sorts(strategy):
    """Return what the last batch's logs hold."""

    def make():
        inputs = keras.Input([6])
        return ReturnsAll(inputs, keras.layers.Dense(1, bias_initializer="ones")(inputs))

    model, last = compiled(strategy, make), {}
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: last.update(logs)
    )
    options = {"batch_size": 24, "verbose": 0, "callbacks": [callback]}
    last["epoch"] = model.fit(*random_data(48), **options).history["loss"][0]
    last |= last.pop("nested", {})  # some versions of Keras flatten logs
    return last | {"bfloat16": float(last["bfloat16"])}  # NumPy has no such scalars


def read_logs_on_last_worker(strategy, reads):
    """Train and evaluate, if `reads` with a callback on the last worker that reads batch logs.

    Returns the logs of the epoch and of `evaluate`, and the last logs that the callback received.
    """
    read = {}

    def reader(moment):
        return lambda batch, logs: read.update({f"{moment} {n}": v for n, v in logs.items()})

    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=reader("fit"), on_test_batch_end=reader("evaluate")
    )
    is_last = strategy.rank == strategy.num_workers - 1
    options = {"batch_size": 24, "callbacks": [callback] if reads and is_last else []}
    x, y = random_data(48)
    model = compiled(strategy, dense(6, 1), metrics=["mae"])
    history = model.fit(x, y, verbose=2, **options).history
    evaluated = model.evaluate(x, y, verbose=0, return_dict=True, **options)
    if not reads:
        with scope(strategy):
            model.late = keras.metrics.Mean(name="late")  # after the step was traced
        assert model.evaluate(x, y, batch_size=24, verbose=0, return_dict=True) == evaluated
    return {
        **{f"fit {name}": values[-1] for name, values in history.items()},
        **{f"evaluate {name}": value for name, value in evaluated.items()},
        **{f"read in {name}": value for name, value in read.items()},
    }
