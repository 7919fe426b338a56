"""The phases of the six calls of a model that Keras 3 needs, see `compat.keras.phases`."""

import numpy as np
import tensorflow as tf

from tf_adasum.compat.keras.batch_logs import has_keras_steps
from tf_adasum.compat.keras.calls import CALLS
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.keras3 import local_predict, scopes
from tf_adasum.compat.keras.phases import Phases
from tf_adasum.compat.keras.private_names_keras3 import (
    Trainer,
    class_weight_to_sample_weights,
    pythonify_logs,
)
from tf_adasum.compat.keras.statistics import synchronize


class PhasesOfKeras3(Phases):
    """The phases of a call of a Keras 3 model."""

    def alone(self, call):
        """Let this worker predict alone if the other workers do not call `predict`."""
        is_alone = call.name == "predict" and local_predict.is_alone(call)
        return local_predict.predict if is_alone else None

    def scope(self, call):
        """Before the first step, refuse objects that were created outside of the scope."""
        scopes.check(call.model, call.strategy, call.name)

    def data(self, call):
        """Divide the batch of an `_on_batch` method among the replicas."""
        if call.name.endswith("on_batch"):
            _split_batch(call)

    def statistics(self, call):
        """Also combine the local steps of the replicas, before one batch is evaluated."""
        if call.name in ("test_on_batch", "predict_on_batch"):
            synchronize(call.model)
        return super().statistics(call)

    def metrics(self, call, logs):
        """Return the metrics over all rows, as a dict and as a list.

        The logs of a step of the user cover all rows. It may give a log the name of a metric that
        it did not update.
        """
        if has_keras_steps(call.model, call.name):
            logs = call.model._get_metrics_result_or_logs(logs)
        logs = pythonify_logs(logs)
        return logs, call.model._flatten_metrics_in_order(logs)


def _split_batch(call):
    """Divide the batch among replicas, because Keras passes the whole batch to every replica."""
    given = call.arguments
    weight, class_weight = given.get("sample_weight"), given.get("class_weight")
    if weight is not None and class_weight is not None:  # Keras refuses it
        return
    if call.strategy.num_replicas_in_sync == 1:
        return
    if class_weight is not None:
        weights = class_weight_to_sample_weights(given.get("y"), given.pop("class_weight"))
        given["sample_weight"] = weights
    names = [name for name in ("x", "y", "sample_weight") if given.get(name) is not None]
    for name in names:
        is_list = isinstance(given[name], list | tuple)
        if is_list and all(map(np.isscalar, tf.nest.flatten(given[name]))):
            given[name] = np.asarray(given[name])
    parts = call.strategy._split_batch([given[name] for name in names])
    given.update(zip(names, parts, strict=True))


hooks.replaces(Trainer, *CALLS)(PhasesOfKeras3().run)
