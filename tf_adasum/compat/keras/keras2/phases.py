"""The phases of the six calls of a model that Keras 2 needs, see `compat.keras.phases`."""

import keras

from tf_adasum.compat.keras.calls import CALLS
from tf_adasum.compat.keras.generation import hooks
from tf_adasum.compat.keras.phases import Phases
from tf_adasum.compat.keras.private_names_keras2 import flatten_metrics_in_order


class PhasesOfKeras2(Phases):
    """The phases of a call of a Keras 2 model, which divides batches and checks scopes itself."""

    def call(self, call):
        """Call Keras's method. `train_on_batch` and `test_on_batch` return metrics of all rows.

        With several workers of several devices each, Keras would return the sum of their results.
        """
        if call.name not in ("train_on_batch", "test_on_batch"):
            return call.result()
        wants_dict, call.arguments["return_dict"] = call.arguments.get("return_dict"), True
        logs = call.model._validate_and_get_metrics_result(call.result())
        return logs if wants_dict else flatten_metrics_in_order(logs, call.model.metrics_names)


hooks.replaces(keras.Model, *CALLS)(PhasesOfKeras2().run)
