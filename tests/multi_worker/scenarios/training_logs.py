"""What the worker processes do for `test_training_logs.py`: steps that return all sorts."""

import keras
import numpy as np
import tensorflow as tf

from scenarios.basics import compiled, dense, random_data, scope


class ReturnsAll(keras.Model):
    """A model whose step returns values of many kinds, which differ between the replicas.

    "loss" is the name of a metric, which the step never updates.
    """

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.counter = self.add_weight(shape=(), initializer="ones", trainable=False, name="c")

    def call(self, x):
        return self.dense(x)

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
            "variable": self.counter,
        }


def return_all_sorts(strategy):
    """Return what the last batch's logs hold."""
    with scope(strategy):
        model = ReturnsAll()
        model.compile("sgd", "mse")
    last = {}
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


class ResultOfMixin:
    """A class that is no metric and has `result`."""

    def result(self):
        return self.value


class Largest(ResultOfMixin, keras.metrics.Metric):
    """The largest value so far."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(initializer="zeros", name="value")

    def update_state(self, values):
        self.value.assign(tf.maximum(self.value.value, tf.reduce_max(values)))


class OtherKeys(keras.Model):
    """A model whose logs have keys that no metric of the model has, and others too few.

    With AUC as a metric, the mean of the replicas' results is not the result over all rows.
    """

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        own = super().compute_metrics(x, y, y_pred, sample_weight)
        precision, recall = own["precision"], own["recall"]
        f1 = 2 * precision * recall / (precision + recall)
        others = {"area": own["auc"], "double": 2 * own["auc"], "parts": {"f1": f1}}
        others["largest"] = self.largest(y_pred)
        if self.run_eagerly:  # eager code does not show that it keeps a maximum
            del own["largest"], others["largest"]
        return {**own, **others, "of_batch": tf.reduce_mean(y_pred)}

    def test_step(self, data):
        return {"auc": super().test_step(data)["auc"]}


def return_other_keys(strategy, **options):
    """The logs of `fit`, `evaluate` and `test_on_batch` with steps that return other keys."""
    keras.utils.set_random_seed(1)
    x, y = random_data(48)
    y = np.float32(y > 0)
    with scope(strategy):
        inputs = keras.Input([6])
        model = OtherKeys(inputs, keras.layers.Dense(1, "sigmoid")(inputs))
        model.largest = Largest()
        metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]
        metrics += [keras.metrics.Recall(name="recall")]
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=metrics, **options)
    options = {"batch_size": 24, "verbose": 0}
    logs = model.fit(x, y, shuffle=False, validation_data=(x[5:], y[5:]), **options).history
    evaluated = model.evaluate(x, y, return_dict=True, **options)
    on_batch = model.test_on_batch(x[:24], y[:24], return_dict=True)
    return {
        **{f"fit {name}": value[-1] for name, value in logs.items() if name != "parts"},
        "fit f1": logs["f1"][-1] if "f1" in logs else logs["parts"][-1]["f1"],
        "evaluate": evaluated["auc"],
        "test_on_batch": on_batch["auc"],
    }
