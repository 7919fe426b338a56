"""ElasticScale: change the batch size and the scale of AdaScale during training."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tf_adasum.arguments import check
from tf_adasum.callbacks.configured import Configured
from tf_adasum.compat import keras as keras_compat
from tf_adasum.compat import tensorflow as tensorflow_compat
from tf_adasum.optimizers import adascale


@keras.saving.register_keras_serializable("tf_adasum")
class ElasticScale(Configured, keras.callbacks.Callback):
    """Callback that changes AdaScale's scale S and the dataset at the beginning of an epoch.

    Args:
        schedule: dict from an epoch, counted from 0, to the S that is used from this epoch on, such
            as ``{0: 1, 10: 4}``; or a function of the epoch that returns S.
        make_dataset: function of S that returns a `tf.data.Dataset` whose batches hold S small
            batches. Pass the attribute `dataset` to `fit`; when S changes, the next epoch uses a
            new dataset. Defaults to `None`: you change the data yourself.

    Attributes:
        scale: int or float, the current S.
        dataset: the `tf.data.Dataset` for `fit`; None without `make_dataset`.

    Raises:
        ValueError: if the schedule has no S for epoch 0, or an S below 1; if `make_dataset` is used
            with Keras 2. When training starts: if the optimizer neither is nor wraps an `AdaScale`.
            When S changes: if `fit` got another dataset than `dataset`.

    Example:
        >>> sgd = keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)
        >>> model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
        >>> model.compile(tf_adasum.optimizers.AdaScale(sgd), "mse")
        >>> rows = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=0)
        >>> elastic = tf_adasum.callbacks.ElasticScale(
        ...     {0: 2, 1: 4}, lambda scale: rows.batch(2 * int(scale), drop_remainder=True))
        >>> history = model.fit(elastic.dataset, epochs=2, callbacks=[elastic], verbose=0)
        >>> elastic.scale
        4
    """

    arguments = ("schedule", "make_dataset")

    def __init__(
        self,
        schedule: dict[int, float] | Callable[[int], float],
        make_dataset: Callable[[float], tf.data.Dataset] | None = None,
    ):
        super().__init__()
        if isinstance(schedule, dict):
            schedule = {int(epoch): scale for epoch, scale in schedule.items()}
            expected = "must have a scale for epoch 0, with which training begins"
            check("schedule", schedule, 0 in schedule, expected)
            for scale in schedule.values():
                adascale.check_scale(scale)
        else:
            expected = "must be a dict from epochs to scales, or a function of the epoch"
            check("schedule", schedule, callable(schedule), expected)
        self.schedule, self.make_dataset = schedule, make_dataset
        self.scale = self.scale_of(0)
        self.dataset: tf.data.Dataset | None = None
        self._following: tf.data.Dataset | None = None
        if make_dataset is not None:
            if keras_compat.IS_KERAS_2:
                raise ValueError(
                    "With Keras 2, ElasticScale cannot change the dataset. Change the data "
                    "yourself, and leave make_dataset out. "
                    f"Received: make_dataset={make_dataset!r} with Keras {keras.__version__}"
                )
            self.dataset = tensorflow_compat.replaceable_dataset(
                make_dataset(self.scale), self._take_next_dataset
            )

    def scale_of(self, epoch: int) -> float:
        """Return the S of an epoch, which is counted from 0."""
        if callable(self.schedule):
            scale = self.schedule(epoch)
            adascale.check_scale(scale)
            return scale
        return self.schedule[max(start for start in self.schedule if start <= epoch)]

    def on_train_begin(self, logs=None):
        """Get the optimizer, and begin with the S and the dataset of epoch 0."""
        self._adascale = adascale.find_adascale(self.model.optimizer, "ElasticScale")
        self.scale, self._following = self.scale_of(0), None
        cardinality = int(self.dataset.cardinality()) if self.dataset is not None else None
        # False if `fit` got steps_per_epoch.
        self._whole_epochs = self.params["steps"] in (None, cardinality)

    def on_epoch_begin(self, epoch, logs=None):
        """Set S for this epoch, and prepare the dataset of this epoch if S has changed."""
        scale, self.scale = self.scale, self.scale_of(epoch)
        if self.scale != self._adascale.scale:
            self._adascale.set_scale(self.scale)
        if self.make_dataset is not None and self.scale != scale:
            self._following = following = self.make_dataset(self.scale)
            if self._whole_epochs:
                steps = int(following.cardinality())
                self.params["steps"] = steps if steps >= 0 else None  # all callbacks share the dict

    def _take_next_dataset(self):
        """Return a dataset that replaces the current one, only once; None if there is none."""
        following, self._following = self._following, None
        return following

    def on_train_batch_begin(self, batch, logs=None):
        """Raise an error if S has changed, but `fit` does not use the new dataset."""
        if self._following is not None:
            raise ValueError(
                "ElasticScale cannot change the dataset that `fit` reads. Pass the callback's "
                "attribute `dataset` to `fit`: model.fit(elastic.dataset, ...), without "
                "class_weight."
            )
