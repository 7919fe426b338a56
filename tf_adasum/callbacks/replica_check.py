"""ReplicaCheck: stops a training whose replicas have parted ways."""

import keras


@keras.saving.register_keras_serializable("tf_adasum")
class ReplicaCheck(keras.callbacks.Callback):
    """Compares the weights of all replicas on all workers, bit for bit, every so often.

    `fit` on several workers makes this check once, when training starts. It costs a pass over the
    weights and a collective of a few bytes: about 0.05 s for 25 million parameters and a replica.
    What is compared: weights, frozen ones too, what the optimizer counts, its learning rate, the
    aggregation rule's state. Between the local steps of a `DeltaAdasum` the weights are left out.

    Pass it on all workers. With one replica there is nothing to compare.

    Args:
        every: steps (calls of the training function) between two checks, or ``"epoch"``, at the end
            of each.

    Raises:
        ValueError: if `every` is neither; when training starts, if the model is trained by another
            strategy than an `AdasumMirroredStrategy`; on all workers, if not all have the callback.
        tf_adasum.ReplicasDiffer: on all workers, naming the first variable that differs.

    Example:
        >>> model.fit(dataset, callbacks=[tf_adasum.callbacks.ReplicaCheck(every=1000)])
    """

    def __init__(self, every="epoch"):
        super().__init__()
        is_count = isinstance(every, int) and not isinstance(every, bool) and every >= 1
        if not (is_count or (isinstance(every, str) and every == "epoch")):
            raise ValueError(
                f"`every` must be an int of 1 or more, or 'epoch'. Received: every={every!r}"
            )
        self.every = every
        self._step = self._before_epoch = self._checked = 0

    def get_config(self):
        """Returns the constructor's arguments."""
        return {"every": self.every}

    @classmethod
    def from_config(cls, config):
        """Returns a callback made from what `get_config` returned."""
        return cls(**config)

    @property
    def same_on_all_workers(self):
        """What all workers compare when training starts: this callback waits for the others."""
        return f"ReplicaCheck(every={self.every!r})"

    def on_train_begin(self, logs=None):
        """Starts counting."""
        strategy = self.model.distribute_strategy
        replicas = getattr(strategy, "num_replicas_in_sync", 1)
        if replicas > 1 and not hasattr(strategy, "check_model"):
            raise ValueError(
                "ReplicaCheck needs a model that was made under an AdasumMirroredStrategy. "
                f"Received: one of {type(strategy).__name__}"
            )
        self._check = strategy.check_model if replicas > 1 else lambda model: None
        self._step = self._checked = 0

    def on_epoch_begin(self, epoch, logs=None):
        """Starts an epoch."""
        self._before_epoch = self._step

    def on_train_batch_end(self, batch, logs=None):
        """Checks, when it is time."""
        self._step = self._before_epoch + batch + 1
        if self.every != "epoch" and self._step // self.every > self._checked // self.every:
            self._checked = self._step
            self._check(self.model)

    def on_epoch_end(self, epoch, logs=None):
        """Checks, where it is to be done after each epoch."""
        if self.every == "epoch":
            self._check(self.model)
