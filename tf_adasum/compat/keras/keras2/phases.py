"""The phases of the six calls of a model that Keras 2 needs, see `compat.keras.phases`."""

import keras

from tf_adasum.compat.keras.calls import CALLS
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.phases import Phases
from tf_adasum.compat.keras.private_names_keras2 import flatten_metrics_in_order


class PhasesOfKeras2(Phases):
    """The phases of a call of a Keras 2 model, which divides batches and checks scopes itself."""

    def metrics(self, call, logs):
        """Return the metrics over all rows, as a dict and as a list."""
        logs = call.model._validate_and_get_metrics_result(logs)
        return logs, flatten_metrics_in_order(logs, call.model.metrics_names)


hooks.replaces(keras.Model, *CALLS)(PhasesOfKeras2().run)
