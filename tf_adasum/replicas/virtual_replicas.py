"""Virtual replicas: each device computes several replicas, and updates once (`micro_batches`)."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_adasum.aggregation.rules import AggregationRule, Sum
from tf_adasum.arguments import check_count
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.errors import see
from tf_adasum.replicas.micro_batches import DeviceStep

NO_STEP = (
    "With `virtual_replicas`, a Keras optimizer has to combine the gradients, in a step that is "
    "called once for each virtual replica: strategy.run(strategy.in_virtual_replicas(train_step), "
    f"args=(x, y)). {see('TFA-316')}"
)
NEEDS_OTHERS = (
    "With `virtual_replicas`, a step cannot read values of other replicas, as a synchronized "
    "BatchNormalization does, because the replicas of a device run one after the other. "
    f"{see('TFA-316')}"
)


class VirtualReplicas:
    """The virtual replicas of a strategy.

    Args:
        strategy: the strategy.
        count: V, the number of virtual replicas; a multiple of the number of devices.

    Attributes:
        count: V.
        per_device: k, the number of virtual replicas of each device.
        steps: dict from the id of a replica to the `DeviceStep` that it runs while it is traced.
    """

    def __init__(self, strategy: Any, count: int):
        self.count, self.per_device = count, count // strategy.num_replicas_in_sync
        self._strategy = strategy
        self.steps: dict[int | None, DeviceStep] = {}

    @property
    def step(self) -> DeviceStep | None:
        """The `DeviceStep` that this device runs, or None."""
        return self.steps.get(tensorflow_compat.replica())

    def each(self, function: Callable, results: Callable[[], list] = list) -> Callable:
        """Return a function that calls `function` once for each virtual replica of this device.

        Args:
            function: the function of a replica.
            results: function that returns the results of the model's metrics, which are logged as
                they are after the last micro-batch. Defaults to no results.
        """
        if self.per_device == 1:
            return function

        @tf.autograph.experimental.do_not_convert
        def in_micro_batches(*arguments: Any) -> Any:
            own = tensorflow_compat.replica()
            self.steps[own] = DeviceStep(self._strategy, arguments)
            try:
                return self.steps[own].run(function, results)
            except RuntimeError as error:
                if "merge_call" in str(error.__cause__ or error):
                    raise RuntimeError(NEEDS_OTHERS) from error
                raise
            finally:
                del self.steps[own]

        return in_micro_batches

    def check(self, is_possible: bool, message: str = NO_STEP) -> None:
        """Raise a RuntimeError if devices have several virtual replicas, unless it is possible."""
        if self.per_device > 1 and not is_possible:
            raise RuntimeError(message)

    def check_exchange(self) -> None:
        """Raise a RuntimeError if a step reads values of other replicas before its update."""
        is_possible = all(step.is_within_update for step in self.steps.values())
        self.check(is_possible, NEEDS_OTHERS)


def validated_count(
    count: int | None, devices: int, rule: AggregationRule, local_reduction: str | None
) -> int:
    """Return the number of virtual replicas for a strategy's argument `virtual_replicas`.

    Args:
        count: the argument.
        devices: the number of devices of all workers.
        rule: the strategy's rule.
        local_reduction: the strategy's argument.

    Raises:
        ValueError: if the number is no multiple of the devices, or the rule or the reduction needs
            real replicas.
    """
    if count is None:
        return devices
    check_count("virtual_replicas", count, "must be an int, a multiple of the number of devices")
    if count % devices:
        raise ValueError(
            "Each device needs as many virtual replicas. Use virtual_replicas="
            f"{-(-count // devices) * devices}, or a number of devices that divides {count}. "
            f"Received: virtual_replicas={count}, {devices} devices {see('TFA-316')}"
        )
    if count == devices:
        return count
    if not (rule.is_tree_of_pairs or rule.is_mean or rule.computes_as(Sum)):
        raise ValueError(
            "`virtual_replicas` needs a rule that combines gradients one after the other: "
            f"'adasum', 'mean' or 'sum'. {rule!r} needs the gradients of all replicas at once. Use "
            f"as many devices, or another rule. Received: aggregation={rule!r}"
        )
    if local_reduction is not None or keras_compat.IS_KERAS_2:
        raise ValueError(
            "`virtual_replicas` needs Keras 3 and local_reduction=None, unless there are as many "
            f"devices. Received: virtual_replicas={count}, local_reduction={local_reduction!r}"
        )
    return count
