"""ReplicaCheck: stops a training whose replicas have come to hold different weights."""

from __future__ import annotations

import typing

import keras

from tf_adasum import arguments
from tf_adasum.callbacks.step_counter import StepCounter
from tf_adasum.seams.base_strategy import GradientAggregatingStrategy


@keras.saving.register_keras_serializable("tf_adasum")
class ReplicaCheck(keras.callbacks.Callback):
    """Callback that compares all replicas' weights on all workers, bit for bit, every so often.

    `fit` on several workers makes this check once, when training starts. It costs a pass over the
    weights and a collective of a few bytes: about 0.05 s for 25 million parameters and a replica.
    What is compared: weights, frozen ones too, what the optimizer counts, its learning rate, the
    aggregation rule's state. Between the local steps of a `DeltaAdasum` the weights are left out.

    Pass it on all workers. With one replica there is nothing to compare.

    Args:
        every: int, steps (calls of the training function) between two checks; or ``"epoch"``, at
            the end of each. Defaults to `"epoch"`.

    Raises:
        ValueError: if `every` is neither; when training starts, if the model is trained by another
            strategy than an `AdasumMirroredStrategy`; on all workers, if not all have the callback.
        tf_adasum.ReplicasDiffer: on all workers, naming the first variable that differs.

    Example:
        >>> check = tf_adasum.callbacks.ReplicaCheck(every=1000)
        >>> history = model.fit(dataset, callbacks=[check], verbose=0)
    """

    def __init__(self, every: int | str = "epoch"):
        super().__init__()
        if not (isinstance(every, str) and every == "epoch"):
            arguments.check_count("every", every, "must be an int of 1 or more, or 'epoch'")
        self.every = every
        self._counter: StepCounter | None = None  # where it counts steps, while training

    def get_config(self) -> dict[str, typing.Any]:
        """Return the constructor's arguments."""
        return {"every": self.every}

    @classmethod
    def from_config(cls, config: dict[str, typing.Any]) -> ReplicaCheck:
        """Return a callback made from what `get_config` returned."""
        return cls(**config)

    @property
    def same_on_all_workers(self) -> str:
        """What all workers compare when training starts: this callback waits for the others."""
        return f"ReplicaCheck(every={self.every!r})"

    def on_train_begin(self, logs=None):
        """Start counting."""
        strategy = self.model.distribute_strategy
        if strategy.num_replicas_in_sync > 1 and not _is_ours(strategy):
            raise ValueError(
                "ReplicaCheck needs a model that was made under an AdasumMirroredStrategy. "
                f"Received: one of {type(strategy).__name__}"
            )
        self._counter = None if isinstance(self.every, str) else StepCounter(self.every)

    def on_epoch_begin(self, epoch, logs=None):
        """Start an epoch."""
        if self._counter:
            self._counter.begin_epoch()

    def on_train_batch_end(self, batch, logs=None):
        """Check, when it is time."""
        if self._counter and self._counter.end_batch(batch):
            self._counter.done()
            self._check()

    def on_epoch_end(self, epoch, logs=None):
        """Check, where it is to be done after each epoch."""
        if not self._counter:
            self._check()

    def _check(self):
        strategy = self.model.distribute_strategy
        if _is_ours(strategy):
            strategy.check_model(self.model)


def _is_ours(strategy):
    return isinstance(strategy, GradientAggregatingStrategy)
