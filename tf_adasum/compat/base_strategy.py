"""The base class by which compat, optimizers, callbacks and backups recognize our strategies.

`tf_adasum.strategy` imports compat, so these modules cannot import it to call `isinstance`.
"""

import weakref
from typing import Any

from tf_adasum.errors import deprecated

# Members of strategies that have an underscore now.
FORMERLY_PUBLIC = frozenset(
    "aggregation_state check_model check_same_gradients detecting_failures empty_replicas "
    "nonfinite seeds sharding split_batch workers".split()
)


class GradientAggregatingStrategy:
    """A `tf.distribute.Strategy` that combines the replicas' gradients with an aggregation rule.

    `AdasumMirroredStrategy` defines the members. Besides those of each `tf.distribute.Strategy`,
    other modules use `aggregation`, `num_virtual_replicas`, `are_gradients_combined`,
    `working_together`, `average_statistics`, `_aggregation_state`, `_check_model`,
    `_check_same_gradients`, `_detecting_failures` and `_split_batch`, and these attributes:

    Attributes:
        _workers: the `workers.workers.Workers`: this worker's rank, and the exchange of values.
        _seeds: the `workers.seeds.Seeds`, with which workers shuffle.
        _sharding: the `workers.sharding.Sharding`, which shards and compares datasets.
        _empty_replicas: the `replicas.empty_replicas.EmptyReplicas`, which counts rows.
        _nonfinite: the `replicas.nonfinite_gradients.NonFinite`, for gradients with NaN or Inf.
        _virtual_replicas: the `replicas.virtual_replicas.VirtualReplicas`, for micro-batches.
    """

    def __getattr__(self, name: str) -> Any:
        """Return an internal member that earlier had a public name, with a DeprecationWarning."""
        if name not in FORMERLY_PUBLIC:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        deprecated(f"strategy.{name}", f"strategy._{name}, which is internal")
        return getattr(self, f"_{name}")


# All strategies of this process that still exist.
live_strategies: weakref.WeakSet[GradientAggregatingStrategy] = weakref.WeakSet()
